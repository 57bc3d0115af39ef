"""Keys placed earlier in the same checkpoint, in front of another index.

Where rows reach the assigner as they come, and not sorted by key at the end, a key can come twice
before any file tells where it went.
"""

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.pipeline.index import Index


class RecentIndex:
    """`inner`, but keys remembered since it was made are found first."""

    def __init__(self, inner: Index) -> None:
        self._inner, self.counts = inner, inner.counts
        self._placed: dict[str, list[tuple[pa.Array, pa.Array]]] = {}

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """File id of each key in that partition, null where the key is new."""
        found = self._inner.locate(partition, keys)
        for placed, file_ids in self._placed.get(partition, []):
            recent = file_ids.take(pc.index_in(keys, value_set=placed))
            found = pc.coalesce(recent, found)  # a file loaded since may have a key of its hash
        return found

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        """Note where new keys were put."""
        self._placed.setdefault(partition, []).append((keys, file_ids))
        self._inner.remember(partition, keys, file_ids)

    def save(self, name: str) -> None:
        """Keep what was noted, as far as the inner index keeps it."""
        self._inner.save(name)
