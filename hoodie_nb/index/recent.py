"""A wrapper for an index that remembers keys assigned earlier in the same checkpoint.

If rows reach the assigner as they arrive, and not sorted by key at the end, a key can occur twice
before any file contains it. The inner index is asked once per key: its second answer could differ
for a key that shares its hash with others.
"""

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.writer.index_port import Copies, Index


class RecentIndex:
    """`inner`, but keys already located or remembered keep their file ids."""

    def __init__(self, inner: Index) -> None:
        self._inner, self.counts = inner, inner.counts
        self._placed: dict[str, list[tuple[pa.Array, pa.Array]]] = {}

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return the file id of each key in that partition, null for a new key."""
        known = pa.nulls(len(keys), pa.string())
        for placed, file_ids in self._placed.get(partition, []):
            known = pc.coalesce(known, file_ids.take(pc.index_in(keys, value_set=placed)))
        new = pc.is_null(known)
        asked = keys.filter(new)
        found = self._inner.locate(partition, asked)
        self._note(partition, asked.filter(pc.is_valid(found)), found.drop_null())
        return pc.replace_with_mask(known, new, found)

    def copies(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> Copies:
        """Return other file groups with the keys, as (position of the key, file id)."""
        return self._inner.copies(partition, keys, file_ids)

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        """Record the file ids of new keys."""
        self._note(partition, keys, file_ids)
        self._inner.remember(partition, keys, file_ids)

    def _note(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        self._placed.setdefault(partition, []).append((keys, file_ids))

    def save(self, name: str) -> None:
        """Save the inner index."""
        self._inner.save(name)
