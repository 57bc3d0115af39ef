"""Orphan files: whether a file that no commit names belongs to this table and partition.

*Semantics*: readers would treat them as archived, so they are deleted before that, but only files
of this table: in a partition that its readers list, and with rows that name it, if any can be read.
Other tables, copies and backups inside the table's folder are never deleted. Since some reader
would show their rows (hudi-rs looks into every folder, Java into those with a metadata file), the
timeline must not begin after their instants.
"""

import contextlib

from hoodie_nb.errors import HoodieError
from hoodie_nb.files.base_file import first_row
from hoodie_nb.storage.storage import Storage
from hoodie_nb.storage.walk import other_table
from hoodie_nb.types.schema import PARTITION_PATH
from hoodie_nb.view.file_groups import Folder


def why_not_ours(storage: Storage, path: str, folder: Folder) -> str | None:
    """Return why a file is not in a partition of this table, or not of it; None if it is ours."""
    other = other_table(storage, folder.path)
    if other is not None:
        return f"{other!r} is another table"
    if not folder.is_partition:
        return f"folder {folder.path!r} is not a partition of this table"
    return elsewhere(storage, path) if path.endswith(".parquet") else None


def elsewhere(storage: Storage, path: str) -> str | None:
    """Return the other partition that the rows of a file name; None if none, or not readable."""
    folder = path.rpartition("/")[0]
    with contextlib.suppress(HoodieError):
        row = first_row(storage.fetch(path), [PARTITION_PATH])
        named = folder if row is None else row.column(0)[0].as_py()
        return None if named in (None, folder) else f"its rows belong to partition {named!r}"
    return None
