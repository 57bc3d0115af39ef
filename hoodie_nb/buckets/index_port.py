"""The interface that every index implements: locate keys, remember new ones, count lookups.

*Source:* RFC-24 STEP2, HoodieIndex.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hoodie_nb.view.file_groups import FileSlice

Copies = tuple[npt.NDArray[np.int64], list[str]]


class Index(Protocol):
    """Finds the file group of each known key; the writer reports the keys in its files."""

    counts: "LookupCounts"

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return the file id of each key in that partition, null for a new key."""

    def copies(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> Copies:
        """Return other file groups with the keys, as (position of the key, file id).

        `file_ids` are those that `locate` returned; a key has copies after an `insert`.
        """

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        """Record the file ids of new keys, if nobody else does."""
        return

    def save(self, name: str) -> None:
        """Save the recorded keys, if any, under a name that a repeated task uses again."""
        return


class WrittenKeys(Protocol):
    """The keys of one base file, for the index, while the file is written."""

    complete: bool

    def add(self, keys: pa.ChunkedArray, new_keys: pa.Array) -> None:
        """Add the keys of a piece of the file; `new_keys` were not in the previous slice."""

    def stage(self, staged: str, file_id: str) -> str | None:
        """Save the keys with the staged file; return their path, for the write status."""


KeysOf = Callable[[str, FileSlice | None], WrittenKeys]
"""Creates the `WrittenKeys` of a new file, given its partition path and previous slice."""


@dataclass(slots=True)
class LookupCounts:
    """The cost of one task's lookups, in keys, files and partitions."""

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
