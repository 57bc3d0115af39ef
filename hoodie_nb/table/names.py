"""Names that one file system takes for one and another one for two.

On a file system that does not tell capital letters from small ones (macOS, Windows, some network
disks) the partitions `NY` and `ny` would be one folder: readers would find the rows of both in the
one that was there first, and no upsert would find those of the other one. So the second name is
refused before anything is published. Such file systems do not tell the two texts of an accented
letter from each other either.

**Caveats**: asked of the table's own folder; folders beneath may differ where they are mounted.
"""

import unicodedata
from collections.abc import Collection

from hoodie_nb.errors import InvalidInput
from hoodie_nb.table.storage import META, LocalStorage


def refuse_twins(
    storage: LocalStorage, partitions: Collection[str], written: Collection[str]
) -> None:
    """Raise InvalidInput if a new partition's folder would be that of another partition."""
    new = [path for path in sorted(written) if path not in partitions]
    if not new or not storage.exists(META.upper()):
        return
    known = {_alike(path): path for path in partitions}
    for path in new:
        other = known.setdefault(_alike(path), path)
        if other != path:
            raise InvalidInput(
                f"the partitions {other!r} and {path!r} are one folder on the file system of "
                f"{storage.root}, which does not tell capital letters from small ones: let the "
                "values differ by more than that; nothing of the batch was written"
            )


def _alike(path: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
