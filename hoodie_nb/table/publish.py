"""Publishing, one attempt: how staged files become a commit, in a sequence of durable steps.

*Work flow* of `publish_commit`: markers → `.hoodie_partition_metadata` → hard links of the accepted
files into the partitions → the partitions' folders → completed file. The completed file is the
point of no return.

*Fault tolerance*: each step is idempotent. A crash before the completed file leaves links that the
markers name; readers do not see them because their instant is not completed. An existing target is
compared, never replaced: a file of the same name with other bytes is an error.

*Markers* are the data files that an instant may have left in the partitions. On disk: an empty file
`.hoodie/.temp/<T>/<partition>/<data file>.marker.CREATE` (new file group) or `.marker.MERGE`
(rewrite), created before the data file. The folder has nothing else: any other name makes Java's
rollback ignore the markers and leave the data files. Java's timeline server keeps the same lines in
files `MARKERS0`…; both kinds are read here. Names read from disk are not trusted: only well-formed
base file names of the instant itself, inside the table, are ever returned.

*Source:* RFC-24 "commit", HoodieTable.finalizeWrite, WriteMarkers, MarkerUtils, TransactionUtils.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TypeVar

from hoodie_nb import failpoints
from hoodie_nb.clock import instant_ms
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.file_groups import PARTITION_METADATA, BaseFileName
from hoodie_nb.table.storage import (
    META,
    SCRATCH,
    STAGED,
    Storage,
    create_empty,
    is_remote,
    joined,
    read_bytes,
)
from hoodie_nb.table.timeline import Instant, Timeline

T = TypeVar("T")
MARKERS = f"{META}/.temp"


def staged_folder(instant_time: str, nonce: str) -> str:
    """Return the folder where the tasks of one run stage the files of an instant."""
    return f"{STAGED}/{instant_time}-{nonce}"


def publish_commit(
    storage: Storage,
    timeline: Timeline,
    instant: Instant,
    statuses: Sequence[WriteStatus],
    content: bytes,
) -> Instant:
    """Publish the staged files of `statuses` and write the completed file `content`."""
    write_markers(storage, instant.requested_time, statuses)
    failpoints.hit("coord.markers.post")
    folders = sorted({status.partition_path for status in statuses})
    _each(storage, lambda folder: mark_partition(storage, folder, instant.requested_time), folders)
    failpoints.hit("coord.partition.post")

    def publish(status: WriteStatus) -> None:
        failpoints.hit("coord.publish")
        storage.publish(status.staged_path, status.path)

    _each(storage, publish, statuses)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(storage.sync_folder, folders))
    failpoints.hit("coord.publish.post")
    return timeline.complete(instant, content)


def _each(storage: Storage, act: Callable[[T], object], items: Iterable[T]) -> None:
    """Call `act` with each item; on an object store, where each call waits, with several at once.

    The first error is raised when the calls that were begun have ended.
    """
    if not is_remote(storage.root):
        for item in items:
            act(item)
        return
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(act, items))


def mark_partition(storage: Storage, folder: str, instant_time: str) -> bool:
    """Write the partition's metadata file: without it Java reads none of its rows.

    Returns whether it was missing.
    """
    path = joined(folder, PARTITION_METADATA)
    if storage.entry(path):
        return False
    storage.make_folder(folder)
    depth = len(PurePosixPath(folder).parts)
    moment = datetime.fromtimestamp(instant_ms(instant_time) / 1000, UTC)
    text = (
        f"#partition metadata\n#{moment:%a %b %d %H:%M:%S} UTC {moment:%Y}\n"
        f"commitTime={instant_time}\npartitionDepth={depth}\n"
    )
    storage.put(path, text.encode(), new=True)
    for parent in PurePosixPath(folder).parents:
        storage.sync_folder("" if str(parent) == "." else str(parent))
    return True


def staged_of(storage: Storage, instant_times: Collection[str]) -> list[str]:
    """Return the staging folders of these instants, relative to the table's root."""
    names = (entry.name for entry in storage.list_folder(STAGED))
    return [f"{STAGED}/{name}" for name in names if name.partition("-")[0] in instant_times]


def sweep(
    storage: Storage, instant_times: Collection[str], staged: Iterable[str] | None = None
) -> None:
    """Delete the staged files and markers of completed or rolled back instants.

    `staged` are their staging folders, if known.
    """
    for folder in staged_of(storage, instant_times) if staged is None else staged:
        storage.remove(folder, tree=True)
    for instant_time in instant_times:
        storage.remove(marker_folder(instant_time), tree=True)


def sweep_all(storage: Storage, staged: Iterable[str], *, keep: Collection[str]) -> None:
    """Delete staged files, markers and scratch of dead runs, except for instants in `keep`.

    `staged`: the names below `STAGED` among which `keep` was chosen; a job may have begun since.
    """
    markers = [entry.name for entry in storage.list_folder(MARKERS)]
    for folder, names in ((STAGED, staged), (MARKERS, markers)):
        for name in names:
            if name.split("-")[0] not in keep:
                storage.remove(f"{folder}/{name}", tree=True)
    for entry in storage.list_folder(SCRATCH):
        storage.remove(f"{SCRATCH}/{entry.name}", tree=True)


# --- markers --------------------------------------------------------------------------------------


def marker_folder(instant_time: str) -> str:
    """Return the folder of an instant's markers."""
    return f"{MARKERS}/{instant_time}"


def write_markers(storage: Storage, instant_time: str, statuses: Iterable[WriteStatus]) -> None:
    """Create a marker for each file, durable before any file is published."""
    folder = marker_folder(instant_time)
    storage.make_folder(folder)  # a redone instant may have no files
    folders = {META, MARKERS, folder}
    markers = [status.marker for status in statuses]
    _each(storage, lambda marker: create_empty(storage, f"{folder}/{marker}"), markers)
    for marker in markers:
        for parent in PurePosixPath(marker).parents:
            folders.add(str(PurePosixPath(folder) / parent))
    for name in sorted(folders):
        storage.sync_folder(name)


def marked_files(storage: Storage, instant_time: str) -> list[str]:
    """Return the data files in an instant's markers, relative to the table's root."""
    folder = marker_folder(instant_time)
    found = {path for path in _lines(storage, folder) if is_data_file(path, instant_time)}
    return sorted(found)


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
    """Whether a path read from disk is a base file of the instant, inside the table."""
    pure = PurePosixPath(path)
    name = BaseFileName.parse(pure.name)
    inside = not pure.is_absolute() and ".." not in pure.parts and pure.parts[:1] != (META,)
    return inside and name is not None and name.instant_time == instant_time
