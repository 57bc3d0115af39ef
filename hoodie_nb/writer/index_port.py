"""The index port: what assigner and bucket writer ask of an index, whatever it is.

*Source:* RFC-24 STEP2, HoodieIndex.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

import pyarrow as pa

from hoodie_nb.table.file_groups import FileSlice


class Index(Protocol):
    """Where keys lie already."""

    counts: "LookupCounts"

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """File id of each key in that partition, null where the key is new."""

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        """Note where new keys were put."""

    def save(self, name: str) -> None:
        """Keep what was noted, under a name that a repeated task uses again."""


class WrittenKeys(Protocol):
    """The keys of one base file, for the index, while the file is written."""

    complete: bool

    def add(self, keys: pa.ChunkedArray, new_keys: pa.Array) -> None:
        """Take the keys of a piece of the file, of which `new_keys` the slice before lacked."""

    def stage(self, staged: str, file_id: str) -> str | None:
        """Keep the keys beside the staged file; return where they lie, for the write status."""


KeysOf = Callable[[str, FileSlice | None], WrittenKeys]
"""Makes the keys of a new file from its partition path and the slice before it."""


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
