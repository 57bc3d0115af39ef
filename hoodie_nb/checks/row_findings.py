"""fsck, rows: keys and partition paths in a base file that do not fit its folder.

Readers show such rows, and a write does not find them: it stores their keys again elsewhere.
"""

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.checks.findings import REPLACE, Finding
from hoodie_nb.definition.keys import partition_paths, record_keys
from hoodie_nb.errors import InvalidInput
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.files.base_file import iterate_rows, open_base_file
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.view.file_groups import FileSlice


def row_finding(
    table: TableHandle, piece: FileSlice, local: str, *, computed: bool
) -> Finding | None:
    """Compare the keys and partitions in a readable file with its folder.

    `computed`: also with those of its columns, which are known for tables that can be written.
    """
    file = open_base_file(local)
    config = table.config
    known = file.schema_arrow
    given = {*config.record_key, *config.partition_by} <= {*known.names} and computed
    own = [*config.record_key, *config.partition_by] if given else []
    names = dict.fromkeys([RECORD_KEY, PARTITION_PATH, *own])
    schema = pa.schema([known.field(name) for name in names if name in known.names])
    for rows in iterate_rows(file, schema, local):
        named = pc.unique(rows[PARTITION_PATH]).to_pylist()
        keys = None
        with suppress(InvalidInput):  # another engine wrote what we would refuse
            if given:
                named += pc.unique(partition_paths(rows, config)).to_pylist()
                keys = record_keys(rows, config)
        other = next((str(text) for text in named if text != piece.partition_path), None)
        if other is not None:
            what = f"{piece.path} has rows of partition {other!r}: a write stores their keys again"
            return Finding(what, REPLACE, "wrong-partition")
        if keys is not None and not pc.all(pc.equal(keys, rows[RECORD_KEY])).as_py():
            what = f"{piece.path} has rows under other record keys than their columns say: a write "
            return Finding(f"{what}stores them again", REPLACE, "wrong-record-key")
    return None
