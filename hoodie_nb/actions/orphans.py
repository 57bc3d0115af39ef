"""Base files of no commit that are about to be older than the timeline.

*Semantics*: readers would treat them as archived, so they are deleted before that, but only files
of this table: in a partition that its readers list, and with rows that name it, if any can be read.
Other tables, copies and backups inside the table's folder are never deleted. Since some reader
would show their rows (hudi-rs looks into every folder, Java into those with a metadata file), the
timeline must not begin after their instants.
"""

import contextlib
from collections.abc import Sequence

from hoodie_nb.errors import HoodieError
from hoodie_nb.files.base_file import first_row
from hoodie_nb.storage.storage import Entry, Storage
from hoodie_nb.storage.walk import other_table
from hoodie_nb.types.schema import PARTITION_PATH
from hoodie_nb.view.file_groups import METADATA_NAMES, Commits, base_files, rows_name_folder


def why_not_ours(
    storage: Storage, folder: str, entries: Sequence[Entry], commits: Commits
) -> str | None:
    """Return why a folder is not a partition of this table; None if it is one."""
    other = other_table(storage, folder)
    if other is not None:
        return f"{other!r} is another table"
    marked = any(entry.name in METADATA_NAMES for entry in entries)
    counts = marked or any(True for _ in base_files(entries, commits))
    if marked or (counts and rows_name_folder(storage, folder, entries, commits)):
        return None
    return f"folder {folder!r} is not a partition of this table"


def elsewhere(storage: Storage, path: str) -> str | None:
    """Return the other partition that the rows of a file name; None if none, or not readable."""
    folder = path.rpartition("/")[0]
    with contextlib.suppress(HoodieError):
        row = first_row(storage.fetch(path), [PARTITION_PATH])
        named = folder if row is None else row.column(0)[0].as_py()
        return None if named in (None, folder) else f"its rows belong to partition {named!r}"
    return None
