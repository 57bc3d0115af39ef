"""Tables that another engine lays out as we would not: what gives them away.

Properties do not name everything: which index placed the rows, and how a value became a key or a
folder, may be an option of each write. So the table itself is asked before the first write: its
file ids, how deep its partitions lie, and one of its rows, whose key and partition path must be the
text that we would make of it. A table that differs is read and not written: an upsert of ours would
store its keys again, elsewhere.

**Caveats**: one row is asked, of a file that can be read. *Source:* BucketIdentifier,
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
from hoodie_nb.table.storage import META, LocalStorage

_BUCKET_NODES = f"{META}/.bucket_index"
# a bucket's number in place of the first part of a random UUID; ours are no random ones (version 5)
_BUCKET = re.compile(r"000\d{5}-[0-9a-f]{4}-4[0-9a-f]{3}-.*")
_SAMPLED = 4


def objection(storage: LocalStorage, config: TableConfig, groups: FileGroups) -> str | None:
    """Return why an upsert of ours would double or misplace rows of the table, None if it fits."""
    reason = _other_index(storage, groups) or _other_depth(config, groups)
    return reason or _other_text(storage, config, groups)


def _other_index(storage: LocalStorage, groups: FileGroups) -> str | None:
    ids = [piece.file_id for piece in groups]
    numbered = bool(ids) and all(map(_BUCKET.fullmatch, ids))
    if numbered or storage.exists(_BUCKET_NODES):
        return f"has the bucket index of Hudi ({ids[0] if numbered else _BUCKET_NODES})"
    return None


def _other_depth(config: TableConfig, groups: FileGroups) -> str | None:
    for path in groups.slices:
        if len(path.split("/")) * bool(path) != len(config.partition_by):
            columns = ", ".join(config.partition_by) or "none"
            return f"has partition {path!r}, whose levels are not its partition columns ({columns})"
    return None


def _other_text(storage: LocalStorage, config: TableConfig, groups: FileGroups) -> str | None:
    for piece in itertools.islice(groups, _SAMPLED):
        with contextlib.suppress(HoodieError):  # unreadable, or a value that is refused by itself
            row = _first_row(storage.local_path(piece.path), config)
            if row is None:
                continue
            ours = partition_paths(row, config)[0].as_py(), record_keys(row, config)[0].as_py()
            theirs = row.column(PARTITION_PATH)[0].as_py(), row.column(RECORD_KEY)[0].as_py()
            if None not in theirs and ours != theirs:  # a row without a key says nothing
                return f"has a row with partition path and key {theirs}, which would be {ours} here"
            break
    return None


def _first_row(path: str, config: TableConfig) -> pa.Table | None:
    """Return the first row's meta columns and those that they are made of, None without rows."""
    file = open_base_file(path)
    needed = [*config.record_key, *config.partition_by, PARTITION_PATH, RECORD_KEY]
    if not {*needed} <= {*file.schema_arrow.names}:
        return None
    with read_errors(path):
        for batch in file.iter_batches(1, columns=needed, use_threads=False):
            return pa.Table.from_batches([batch])
    return None
