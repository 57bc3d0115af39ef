"""One attempt to publish: staged files get their names, completed file, sweep of the staging area.

*Work flow* of `publish_commit`: markers → `.hoodie_partition_metadata` → hard links of the accepted
files into the partitions → the partitions' folders → completed file. The completed file is the
point of no return.

*Fault tolerance*: each step is idempotent. A crash before the completed file leaves links that the
markers name; readers do not see them because their instant is not completed. An existing target is
compared, never replaced: a file of the same name with other bytes is an error.

*Source:* RFC-24 "commit", HoodieTable.finalizeWrite, TransactionUtils.
"""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from hoodie_nb import failpoints
from hoodie_nb.storage.storage import SCRATCH, STAGED, Storage, each
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.timeline.timeline import Instant, Timeline
from hoodie_nb.view.markers import MARKERS, marker_folder, write_markers
from hoodie_nb.view.partitions import mark_partition


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
    each(storage, lambda folder: mark_partition(storage, folder, instant.requested_time), folders)
    failpoints.hit("coord.partition.post")

    def publish(status: WriteStatus) -> None:
        failpoints.hit("coord.publish")
        storage.publish(status.staged_path, status.path)

    each(storage, publish, statuses)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(storage.sync_folder, folders))
    failpoints.hit("coord.publish.post")
    return timeline.complete(instant, content)


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
