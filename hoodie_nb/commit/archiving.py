"""Executing an archive plan; whether to archive after a commit, which cleans first.

*Work flow*: plan → delete the files of no commit that would be older than the timeline → add the
instants to the archive, durably → delete their requested and inflight files → delete their
completed files, oldest first → merge files of the archive, if there are many.

*Semantics*: automatic after each commit (`hoodie.archive.automatic`), after the clean, under the
lock that is held anyway. It never fails the commit: an error becomes an event, and a later commit
tries again.

*Fault tolerance*: at any point each instant is on the timeline, or in the archive, or in both. One
that has lost its requested and inflight files is still completed; the other order would make it
look unfinished. The oldest completed file goes first, so that no commit between two others is
missing, which would hide its rows. After a crash the next archiving adds nothing twice.

*Source:* TimelineArchiverV1 and V2, HUDI-7207.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from hoodie_nb import failpoints
from hoodie_nb.actions.archive_plan import ArchivePlan, plan_archive
from hoodie_nb.commit.cleaning import clean_after_commit
from hoodie_nb.errors import HoodieError
from hoodie_nb.events import Emit
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.timeline.archive_log import LogArchive
from hoodie_nb.timeline.archive_lsm import LsmArchive
from hoodie_nb.timeline.instant import Contents, Instant


def tidy_after_commit(table: TableHandle, prepared: Collection[str], emit: Emit) -> bool:
    """Clean, then archive; `prepared` are the times of instants that will be completed.

    Returns whether slices with logs may hold back the archive, and are to be merged.
    """
    clean_after_commit(table, emit)
    held = archive_after_commit(table, prepared, emit)
    return held and table.config.merge_on_read and table.options.clean_automatic and not prepared


def archive_after_commit(table: TableHandle, prepared: Collection[str], emit: Emit) -> bool:
    """Archive by the table's options, if enough commits have completed since the last time.

    Returns whether something keeps commits on the timeline that would be archived.
    """
    held = False
    try:
        with table.timeline.listed_once():
            automatic = table.options.archive_automatic
            if automatic and len(table.timeline.listing.commits) >= table.archive_at:
                options = table.options
                pause = len(table.timeline.listing.commits) + options.keep_max - options.keep_min
                table.archive_at = pause  # unless all goes well
                plan = plan_archive(table, prepared)
                archive(table, plan, emit)
                held = bool(plan.why)
                if not held:
                    table.archive_at = 0
    except (OSError, HoodieError) as error:  # the commit is valid
        emit("archive_postponed", why=str(error))
    return held


def _archive_of(table: TableHandle) -> LogArchive | LsmArchive:
    storage = table.storage
    layout = table.timeline.layout
    if layout.number == 1:
        return LogArchive(storage, layout.archive, table.options.archive_batch)
    return LsmArchive(storage, layout.archive)


def archive(table: TableHandle, plan: ArchivePlan, emit: Emit) -> None:
    """Execute a plan."""
    if plan.why:
        emit("archive_postponed", why=plan.why)
    if not plan.instants:
        return
    timeline = table.timeline
    storage = table.storage
    before = timeline.listing
    for path in plan.orphans:
        storage.remove(path)
        failpoints.hit("archive.orphan")
    for folder in sorted({path.rpartition("/")[0] for path in plan.orphans}):
        storage.sync_folder(folder)
    failpoints.hit("archive.orphans.post")
    to = _archive_of(table)
    to.add(plan.instants, partial(_contents, table))
    failpoints.hit("archive.log.post")
    timeline.drop([file for instant in plan.instants for file in timeline.files(instant)])
    table.keep_groups(before.commit_times)
    failpoints.hit("archive.completed.post")
    emit(
        "instants_archived",
        instants=len(plan.instants),
        start=plan.start,
        orphans=len(plan.orphans),
    )
    to.tidy()


def finish_archiving(table: TableHandle) -> None:
    """Delete the oldest completed files if they are archived: an archiving was not finished.

    Or a store has received one after it: as the first one it would hide the rows of later commits
    that are archived. Such a commit has no other file on the timeline.
    """
    known, _ = table.timeline.left_archived()
    if known:
        table.timeline.drop(known)


def _contents(table: TableHandle, instant: Instant) -> Contents:
    """Return the files of an instant, with completion times, and what is in them."""
    timeline = table.timeline
    files = table.timeline.files(instant)
    done = (replace(file, completion_time=timeline.completion_time(file)) for file in files)
    return [(i, timeline.read(file)) for i, file in zip(done, files, strict=True)]
