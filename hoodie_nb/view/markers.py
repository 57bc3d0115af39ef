"""Marker files: which data files a pending instant may have left.

*On disk*: an empty file
`.hoodie/.temp/<T>/<partition>/<data file>.marker.CREATE` (new file group) or `.marker.MERGE`
(rewrite), created before the data file. The folder has nothing else: any other name makes Java's
rollback ignore the markers and leave the data files. Java's timeline server keeps the same lines in
files `MARKERS0`…; both kinds are read here. Names read from disk are not trusted: only well-formed
names of base and log files of the instant itself, inside the table, are ever returned.

*Source:* WriteMarkers, MarkerUtils.
"""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from hoodie_nb.storage.storage import META, Storage, create_empty, each, joined, read_bytes
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.view.file_groups import data_file_name

MARKERS = f"{META}/.temp"


def marker_folder(instant_time: str) -> str:
    """Return the folder of an instant's markers."""
    return f"{MARKERS}/{instant_time}"


def write_markers(storage: Storage, instant_time: str, statuses: Iterable[WriteStatus]) -> None:
    """Create a marker for each file, durable before any file is published."""
    folder = marker_folder(instant_time)
    storage.make_folder(folder)  # a redone instant may have no files
    folders = {META, MARKERS, folder}
    markers = [status.marker for status in statuses]
    each(storage, lambda marker: create_empty(storage, f"{folder}/{marker}"), markers)
    for marker in markers:
        for parent in PurePosixPath(marker).parents:
            folders.add(str(PurePosixPath(folder) / parent))
    for name in sorted(folders):
        storage.sync_folder(name)


def marked_files(storage: Storage, instant_time: str) -> list[str]:
    """Return the data files in an instant's markers, relative to the table's root."""
    folder = marker_folder(instant_time)
    return sorted({path for path in _lines(storage, folder) if is_data_file(path, instant_time)})


def _lines(storage: Storage, folder: str, inside: str = "") -> Iterator[str]:
    for entry in storage.list_folder(f"{folder}/{inside}".rstrip("/")):
        path = joined(inside, entry.name)
        if entry.is_folder:
            yield from _lines(storage, folder, path)
        elif not inside and entry.name.startswith("MARKERS") and entry.name != "MARKERS.type":
            text = read_bytes(storage, f"{folder}/{path}").decode(errors="replace")
            yield from (_without_kind(line) for line in text.splitlines())
        else:
            yield _without_kind(path)


def _without_kind(marker: str) -> str:
    return marker.rpartition(".marker.")[0]


def is_data_file(path: str, instant_time: str) -> bool:
    """Whether a path read from disk is a base or log file of the instant, inside the table."""
    pure = PurePosixPath(path)
    name = data_file_name(pure.name)
    inside = not pure.is_absolute() and ".." not in pure.parts and pure.parts[:1] != (META,)
    return inside and name is not None and name.instant_time == instant_time
