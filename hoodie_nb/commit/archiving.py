"""Archiving: move the oldest instants from the active timeline to the archive.

*Work flow*: plan → delete the files of no commit that would be older than the timeline → add the
instants to the archive, durably → delete their requested and inflight files → delete their
completed files, oldest first.

*Semantics*: automatic after each commit (`hoodie.archive.automatic`), after the clean, under the
lock that is held anyway. It never fails the commit: an error is an event, and a later commit tries
again.

*Fault tolerance*: at any point each instant is on the timeline, or in the archive, or in both. One
that has lost its requested and inflight files is still completed; the other order would make it
look unfinished. The oldest completed file goes first, so that no commit is missing between others:
its rows would be hidden. What a crash has left is archived next time, and is not added twice.

**Caveats**: only layout 1 (table version 6). *Source:* TimelineArchiverV1, HUDI-7207.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from hoodie_nb import failpoints
from hoodie_nb.commit.cleaning import clean_after_commit
from hoodie_nb.errors import HoodieError, InvalidConfig
from hoodie_nb.table.archive_log import Record, append, record_of
from hoodie_nb.table.archive_plan import ArchivePlan, plan_archive
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.timeline import Instant, State

Emit = Callable[..., None]


def tidy_after_commit(table: TableHandle, prepared: Collection[str], emit: Emit) -> None:
    """Clean, then archive; `prepared` are the times of instants that will be completed."""
    clean_after_commit(table, emit)
    archive_after_commit(table, prepared, emit)


def archive_after_commit(table: TableHandle, prepared: Collection[str], emit: Emit) -> None:
    """Archive by the table's options, if enough commits have completed since the last time."""
    try:
        with table.timeline.listed_once():
            automatic = table.options.archive_automatic and can_archive(table)
            if automatic and len(table.timeline.listing.commits) >= table.archive_at:
                options = table.options
                pause = len(table.timeline.listing.commits) + options.keep_max - options.keep_min
                table.archive_at = pause  # unless all goes well
                plan = plan_archive(table, prepared)
                archive(table, plan, emit)
                if not plan.why:
                    table.archive_at = 0
    except (OSError, HoodieError) as error:  # the commit is valid
        emit("archive_postponed", why=str(error))


def can_archive(table: TableHandle) -> bool:
    """Whether this library can write the archive of the table's layout."""
    return table.timeline.layout.number == 1


def refuse_layout(table: TableHandle) -> None:
    """Raise InvalidConfig if the archive of the table's layout cannot be written."""
    if not can_archive(table):
        raise InvalidConfig(
            f"{table.storage.root} is a table of version {table.config.version}: only the "
            "timeline of version 6 can be archived by this library; Java Hudi archives the others"
        )


def archive(table: TableHandle, plan: ArchivePlan, emit: Emit) -> None:
    """Execute a plan."""
    if plan.why:
        emit("archive_postponed", why=plan.why)
    if not plan.instants:
        return
    timeline, storage = table.timeline, table.storage
    before = timeline.listing
    for path in plan.orphans:
        storage.remove(path)
        failpoints.hit("archive.orphan")
    for folder in sorted({path.rpartition("/")[0] for path in plan.orphans}):
        storage.sync_folder(folder)
    failpoints.hit("archive.orphans.post")
    files = [timeline.files(instant) for instant in plan.instants]
    records = [record for states in files for record in _records(table, states)]
    append(storage, timeline.layout.archive, records, table.options.archive_batch)
    failpoints.hit("archive.log.post")
    timeline.drop([file for states in files for file in states])
    table.keep_groups(before.commit_times)
    failpoints.hit("archive.completed.post")
    emit(
        "instants_archived",
        instants=len(plan.instants),
        start=plan.start,
        orphans=len(plan.orphans),
    )


def _records(table: TableHandle, files: Sequence[Instant]) -> Iterator[Record]:
    """Yield the records of an instant's files; a clean that is inflight has its plan, too."""
    plan = b""
    for file in files:
        where = f"{table.storage.root}/{table.timeline.path(file)}"
        content = table.timeline.read(file)
        if file.action == "clean" and file.state is State.REQUESTED:
            plan = content
        yield record_of(file, plan if file.state is State.INFLIGHT and plan else content, where)
