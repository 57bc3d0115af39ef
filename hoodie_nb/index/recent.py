"""Keys placed earlier in the same checkpoint, in front of another index.

Where rows reach the assigner as they come, and not sorted by key at the end, a key can come twice
before any file tells where it went. The inner index is asked for each key once: it may know more
the second time, and then say otherwise of a key whose hash others have.
"""

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.writer.index_port import Index


class RecentIndex:
    """`inner`, but keys that were located or remembered since it was made stay where they are."""

    def __init__(self, inner: Index) -> None:
        self._inner, self.counts = inner, inner.counts
        self._placed: dict[str, list[tuple[pa.Array, pa.Array]]] = {}

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """File id of each key in that partition, null where the key is new."""
        known = pa.nulls(len(keys), pa.string())
        for placed, file_ids in self._placed.get(partition, []):
            known = pc.coalesce(known, file_ids.take(pc.index_in(keys, value_set=placed)))
        new = pc.is_null(known)
        asked = keys.filter(new)
        found = self._inner.locate(partition, asked)
        self._note(partition, asked.filter(pc.is_valid(found)), found.drop_null())
        return pc.replace_with_mask(known, new, found)

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        """Note where new keys were put."""
        self._note(partition, keys, file_ids)
        self._inner.remember(partition, keys, file_ids)

    def _note(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        self._placed.setdefault(partition, []).append((keys, file_ids))

    def save(self, name: str) -> None:
        """Keep what was noted, as far as the inner index keeps it."""
        self._inner.save(name)
