"""Partition names that are equal on some file systems and different on others.

On a case-insensitive file system (macOS, Windows, some network disks) the partitions `NY` and `ny`
would be one folder: readers would find the rows of both in the first folder, and no upsert would
find those of the second one. So the second name is refused before a checkpoint is prepared or
sealed. Such file systems also treat the two Unicode forms of an accented letter as equal.

**Caveats**: only the table's own folder is checked; mounted subfolders may differ.
"""

import unicodedata
from collections.abc import Collection

from hoodie_nb.errors import InvalidInput
from hoodie_nb.table.storage import META, Storage


def ignores_case(storage: Storage) -> bool:
    """Whether the table's file system is case-insensitive."""
    return storage.entry(META.upper()) is not None


def refuse_colliding_folders(
    storage: Storage, partitions: Collection[str], written: Collection[str]
) -> None:
    """Raise InvalidInput if a new partition's folder would be that of another partition."""
    new = [path for path in sorted(written) if path not in partitions]
    if not new or not ignores_case(storage):
        return
    known = {_alike(path): path for path in partitions}
    for path in new:
        other = known.setdefault(_alike(path), path)
        if other != path:
            raise InvalidInput(
                f"the partitions {other!r} and {path!r} are one folder on the case-insensitive "
                f"file system of {storage.root}: let the "
                "values differ in more than case; nothing of the batch was written"
            )


def _alike(path: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
