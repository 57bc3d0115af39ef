"""Where a record key lies already: the indexes that the assigner asks."""

from dataclasses import asdict, dataclass
from typing import Protocol

import pyarrow as pa


class Index(Protocol):
    """Where keys lie already."""

    counts: "LookupCounts"

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """File id of each key in that partition, null where the key is new."""

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        """Note where new keys were put."""

    def save(self, name: str) -> None:
        """Keep what was noted, under a name that a repeated task uses again."""


@dataclass(slots=True)
class LookupCounts:
    """What the lookups of one task cost, in keys, files and partitions."""

    keys: int = 0
    state_hits: int = 0
    pruned_by_range: int = 0
    candidates: int = 0
    false_positives: int = 0
    files_looked_up: int = 0
    keys_loaded: int = 0
    found: int = 0
    partitions: int = 0
    pure_partitions: int = 0
    damaged_runs: int = 0

    def as_values(self) -> dict[str, int]:
        """Return the counts by name, for an event."""
        return asdict(self)
