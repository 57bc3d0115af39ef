"""Detection of tables that another engine lays out in a way this library does not.

The properties do not contain everything: the index that placed the rows, and the way in which a
value became a key or a folder, may be options of each write. So the table itself is checked before
the first write: its file ids, the depth of its partitions, and one of its rows, whose key and
partition path must equal the text that this library would generate. A table that differs can be
read but not written: an upsert would store its keys again, elsewhere.

**Caveats**: only one row is checked, of a readable file. *Source:* BucketIdentifier,
ConsistentBucketIndexUtils, KeyGenUtils.
"""

import contextlib
import itertools
import re

import pyarrow as pa

from hoodie_nb.errors import HoodieError
from hoodie_nb.table.base_file import open_base_file, read_errors
from hoodie_nb.table.file_groups import FileGroups
from hoodie_nb.table.keys import partition_paths, record_keys
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.table.storage import META, Storage

_BUCKET_NODES = f"{META}/.bucket_index"
# a bucket number replaces the first part of a random UUID; ours are not random (version 5)
_BUCKET = re.compile(r"000\d{5}-[0-9a-f]{4}-4[0-9a-f]{3}-.*")
_SAMPLED = 4


def objection(storage: Storage, config: TableConfig, groups: FileGroups) -> str | None:
    """Return why an upsert would duplicate or misplace rows of the table; None if it would not."""
    reason = _other_index(storage, groups) or _other_depth(config, groups)
    return reason or _other_text(storage, config, groups)


def _other_index(storage: Storage, groups: FileGroups) -> str | None:
    ids = [piece.file_id for piece in groups]
    numbered = bool(ids) and all(map(_BUCKET.fullmatch, ids))
    if numbered or storage.entry(_BUCKET_NODES):
        return f"uses Hudi's bucket index ({ids[0] if numbered else _BUCKET_NODES})"
    return None


def _other_depth(config: TableConfig, groups: FileGroups) -> str | None:
    for path in groups.slices:
        if len(path.split("/")) * bool(path) != len(config.partition_by):
            columns = ", ".join(config.partition_by) or "none"
            return (
                f"has partition {path!r}, whose levels do not match the partition columns {columns}"
            )
    return None


def _other_text(storage: Storage, config: TableConfig, groups: FileGroups) -> str | None:
    for piece in itertools.islice(groups, _SAMPLED):
        with contextlib.suppress(HoodieError):  # unreadable, or an invalid value
            row = _first_row(storage.fetch(piece.path), config)
            if row is None:
                continue
            ours = partition_paths(row, config)[0].as_py(), record_keys(row, config)[0].as_py()
            theirs = row.column(PARTITION_PATH)[0].as_py(), row.column(RECORD_KEY)[0].as_py()
            if None not in theirs and ours != theirs:  # a row without a key proves nothing
                return f"has a row with partition path and key {theirs}, which would be {ours} here"
            break
    return None


def _first_row(path: str, config: TableConfig) -> pa.Table | None:
    """Return the first row's meta columns and their source columns; None without rows."""
    file = open_base_file(path)
    needed = [*config.record_key, *config.partition_by, PARTITION_PATH, RECORD_KEY]
    if not {*needed} <= {*file.schema_arrow.names}:
        return None
    with read_errors(path):
        for batch in file.iter_batches(1, columns=needed, use_threads=False):
            return pa.Table.from_batches([batch])
    return None
