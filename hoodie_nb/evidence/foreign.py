"""Other engines' bucket index, key text and path depth, seen in files: such tables are read-only.

The properties do not contain everything: the index that placed the rows, and the way in
which a value became a key or a folder, may be options of each write. So the table itself is checked
before the first write: its file ids, the depth of its partitions, and one of its rows, whose key
and partition path must equal the text that this library would generate. A table that differs can be
read but not written: an upsert would store its keys again, elsewhere. A few files are looked at;
the depth of all partitions, before a write creates one: its rows may be in a path of another depth.

**Caveats**: only one row is checked, of a readable file. *Source:* BucketIdentifier,
ConsistentBucketIndexUtils, KeyGenUtils.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable

from hoodie_nb.definition.keys import partition_paths, record_keys
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import HoodieError
from hoodie_nb.files.base_file import first_row
from hoodie_nb.storage.storage import META, Storage
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.view.file_groups import FileGroups, FileSlice

_BUCKET_NODES = f"{META}/.bucket_index"
# a bucket number replaces the first part of a random UUID; ours are not random (version 5)
_BUCKET = re.compile(r"000\d{5}-[0-9a-f]{4}-4[0-9a-f]{3}-.*")
_SAMPLED = 4


def objection(storage: Storage, config: TableConfig, groups: FileGroups) -> str | None:
    """Return why an upsert would duplicate or misplace rows of the table; None if it would not.

    Looks at a few files, of the first partitions.
    """
    some = [*itertools.islice(groups.unordered(), _SAMPLED)]
    levels = other_levels(config, [piece.partition_path for piece in some])
    return _other_index(storage, groups) or levels or _other_text(storage, config, some)


def _other_index(storage: Storage, groups: FileGroups) -> str | None:
    first = next(groups.unordered(), None)
    ids = (piece.file_id for piece in groups.unordered())
    numbered = first is not None and all(map(_BUCKET.fullmatch, ids))  # lists all only if they are
    if numbered or storage.entry(_BUCKET_NODES):
        return (
            f"uses Hudi's bucket index ({first.file_id if first and numbered else _BUCKET_NODES})"
        )
    return None


def other_levels(config: TableConfig, paths: Iterable[str]) -> str | None:
    """Return why one of the partition paths is none of this table's; None if all may be."""
    for path in paths:
        levels = len(path.split("/")) if path else 0
        if levels != config.levels:
            columns = ", ".join(config.partition_by) or "none"
            return (
                f"has partition {path!r}, whose levels do not match the partition columns {columns}"
            )
    return None


def _other_text(storage: Storage, config: TableConfig, pieces: Iterable[FileSlice]) -> str | None:
    needed = [*config.record_key, *config.partition_by, PARTITION_PATH, RECORD_KEY]
    for piece in pieces:
        with contextlib.suppress(HoodieError):  # unreadable, or an invalid value
            row = first_row(storage.fetch(piece.path), needed)
            if row is None:
                continue
            ours = partition_paths(row, config)[0].as_py(), record_keys(row, config)[0].as_py()
            theirs = row.column(PARTITION_PATH)[0].as_py(), row.column(RECORD_KEY)[0].as_py()
            if None not in theirs and ours != theirs:  # a row without a key proves nothing
                return f"has a row with partition path and key {theirs}, which would be {ours} here"
            break
    return None
