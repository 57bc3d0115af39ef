"""Archive plan: which instants may leave the active timeline, and what blocks them.

*Semantics*: those of Hudi. When more than `hoodie.keep.max.commits` commits have completed, the
oldest are archived until `hoodie.keep.min.commits` are left; both are raised if the cleaner
retains more. A commit stays

- from the first savepoint on (`hoodie.archive.beyond.savepoint` is refused: see `config`);
- from the newest commit before an unfinished action on;
- if it replaced file groups that still have files: they would reappear;
- if it wrote a log file that is still there: it says how long the log is, and what is in it;
- if it decides which of two files of one group and instant counts.

More than `keep.max` cleans or rollbacks are archived in the same way, but only those that are older
than all commits that stay: reads as of a commit compare with all later cleans, and `changes` since
a commit with what was undone later.

*Iron rule*: a file that no commit names is hidden as long as its instant is not older than the
timeline; if it is older, every reader assumes that its commit was archived. So such files are
deleted before the timeline is shortened, unless there is evidence that their instant completed; a
log only if its instant was rolled back, or if it is a copy: the index does not name a commit that
wrote logs only.
Other files (see `orphans`) are never deleted: the timeline must not begin after their instants.

*Cost*: one look at the listing; partitions are listed only if there is something to archive.

*Source:* TimelineArchiverV1, ArchivalUtils.getMinAndMaxInstantsToKeep, HUDI-7207.
"""

import bisect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hoodie_nb.actions.clean_plan import COMMITS_POLICY, Retention, earliest_to_retain
from hoodie_nb.actions.orphans import why_not_ours
from hoodie_nb.actions.rollback import was_rolled_back
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.lost import traces
from hoodie_nb.logs.log_name import LogFileName
from hoodie_nb.storage.storage import joined
from hoodie_nb.timeline.timeline import COMMITS, Instant, Listing
from hoodie_nb.types.log_blocks import read_blocks
from hoodie_nb.view.file_groups import BaseFile, Commits, Folder, Group, table_folders
from hoodie_nb.view.history import History
from hoodie_nb.view.logs import data_files, log_groups

_HARMLESS = ("clean", "indexing")  # unfinished ones: they have no rows
_OTHERS = ("clean", "rollback")


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """The completed instants to archive, oldest first, and the files of no commit to delete.

    `start` is the time of the first commit that stays; `why` says what keeps others on the
    timeline that would be archived too.
    """

    instants: tuple[Instant, ...] = ()
    start: str = ""
    orphans: tuple[str, ...] = ()
    why: str = ""


def limits(table: TableHandle, listing: Listing) -> tuple[int, int]:
    """Return how many commits stay at least and at most: those that the cleaner retains do.

    One before them can be read, too. Hudi does not count commits to come, and may archive so many
    that the cleaner never has enough.
    """
    options = table.options
    retention = Retention.of(table.options)
    least = options.keep_min
    most = options.keep_max
    retained = 0
    if retention.policy == COMMITS_POLICY:
        retained = retention.number + 1
    if retention.hour or retention.policy != COMMITS_POLICY:
        earliest = earliest_to_retain(table, listing, retention)
        if earliest is not None:
            first = bisect.bisect_left(listing.commit_times, earliest.requested_time)
            retained = max(retained, len(listing.commit_times) - first + 1)
    return (retained, retained + most - least) if retained > least else (least, most)


def plan_archive(
    table: TableHandle, prepared: Collection[str] = (), *, least_only: bool = False
) -> ArchivePlan:
    """Return what to archive now; `prepared` are times of instants that will be completed.

    With `least_only` the least number of commits stays, even if fewer than at most are there.
    """
    listing = table.timeline.listing
    least, most = limits(table, listing)
    plan = _listed(listing, least, least if least_only else most, prepared)
    if not any(i.action in COMMITS for i in plan.instants):
        return plan
    seen = _Seen(table, listing, plan)
    until, why = seen.blocked()
    if until is not None:
        kept = [i for i in plan.instants if i.action not in COMMITS or i.requested_time < until]
        plan = _with_start(replace(plan, instants=tuple(kept), why=why), listing)
    return replace(plan, orphans=tuple(seen.orphans(plan.start)))


def _listed(listing: Listing, least: int, most: int, prepared: Collection[str]) -> ArchivePlan:
    """Return what to archive by the timeline alone."""
    if listing.pending_of("restore"):
        return ArchivePlan()
    times = [i.requested_time for i in listing.pending if i.action not in _HARMLESS]
    open_since = min([*times, *prepared], default=None)
    commits = list(listing.commits)
    chosen = _before(commits, min(listing.saved, default=None))
    if open_since is not None:
        before = _before(commits, open_since)
        chosen = _before(chosen, before[-1].requested_time if before else open_since)
    surplus = len(commits) - least if len(commits) > most else 0
    chosen = chosen[:surplus]
    plan = _with_start(ArchivePlan(tuple(chosen)), listing)
    until = min(plan.start, open_since or plan.start)
    others = (i for action in _OTHERS for i in _surplus(listing, action, least, most, until))
    instants = sorted([*chosen, *others], key=lambda i: (i.requested_time, i.action))
    return replace(plan, instants=tuple(instants))


def _before(instants: Sequence[Instant], time17: str | None) -> list[Instant]:
    return [i for i in instants if time17 is None or i.requested_time < time17]


def _surplus(listing: Listing, action: str, least: int, most: int, until: str) -> list[Instant]:
    """Return the oldest completed instants of an action, if there are too many, before a time."""
    found = listing.completed(action)
    return _before(found[: len(found) - least], until) if len(found) > most else []


def _with_start(plan: ArchivePlan, listing: Listing) -> ArchivePlan:
    """Return the plan with the start of the timeline after it; others than commits stay there."""
    gone = {i.requested_time for i in plan.instants if i.action in COMMITS}
    start = next((time17 for time17 in listing.commit_times if time17 not in gone), "")
    kept = [i for i in plan.instants if i.action in COMMITS or i.requested_time < start]
    return replace(plan, instants=tuple(kept), start=start)


# --- the files ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """What the partitions have of the commits that are to be archived."""

    table: TableHandle
    listing: Listing
    plan: ArchivePlan
    counted: dict[Group, list[str]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)  # the instants, by path
    unknown: dict[str, str] = field(default_factory=dict)
    foreign: list[tuple[str, str]] = field(default_factory=list)
    replaced: Collection[Group] = field(init=False)  # as of now

    def __post_init__(self) -> None:
        self.replaced = self.table.file_groups().replaced
        commits = Commits.of(self.table.timeline, self.listing)
        for folder in table_folders(self.table.storage, commits, every=True):
            for file in data_files(folder, logs=self.table.config.merge_on_read):
                time17 = file.name.instant_time
                if not commits.count(time17):
                    self._note(file.path, time17, folder)
                elif isinstance(file, BaseFile):
                    group = (folder.path, file.name.file_id)
                    self.counted.setdefault(group, []).append(time17)
                elif folder.is_partition:
                    self.logs[file.path] = time17

    def _note(self, path: str, time17: str, folder: Folder) -> None:
        """Note a file of no commit."""
        if time17 < self.plan.start:
            why = why_not_ours(self.table.storage, path, folder)
            if why is None:
                self.unknown[path] = time17
            else:
                self.foreign.append((time17, f"{path} is in no commit, and {why}"))

    def blocked(self) -> tuple[str | None, str]:
        """Return the first commit that must stay, and why; None if all can be archived.

        Raises InvalidTable if a commit's file is lost: nobody would miss it afterwards.
        """
        found = sorted(
            [*self._replaced(), *self._with_logs(), *self._ambiguous(), *self._visible()]
        )
        return found[0] if found else (None, "")

    def _archived(self) -> list[Instant]:
        return [i for i in self.plan.instants if i.action in COMMITS]

    def _replaced(self) -> Iterator[tuple[str, str]]:
        there = {*self.counted, *log_groups(self.logs)}
        for instant in self._archived():
            said = History.of(self.table, [instant], keep=False)
            for group, (time17, path) in said.newest.items():
                self._refuse_missing(instant, group, time17, path)
            for group in there & said.replaced.keys():
                what = f"replaced file group {joined(*group)}, whose files are not cleaned yet"
                yield instant.requested_time, f"{instant} {what}"

    def _refuse_missing(self, instant: Instant, group: Group, time17: str, path: str) -> None:
        """Raise InvalidTable if a file is missing, and its group has no newer base file."""
        if group not in self.replaced and max(self.counted.get(group, [""])) < time17:
            raise InvalidTable(
                f"{self.table.storage.root}/{path}, written by {instant}, is missing: "
                "`fsck` says what to do"
            )

    def _with_logs(self) -> Iterator[tuple[str, str]]:
        """Yield the commits whose logs are there, by their first one; none may be missing."""
        if not self.table.config.merge_on_read:
            return
        by_time = {time17: path for path, time17 in sorted(self.logs.items(), reverse=True)}
        for instant in self._archived():
            time17 = instant.requested_time
            for log in self.table.logs_named(instant):
                group = (log.path.rpartition("/")[0], log.name.file_id)
                if log.path not in self.logs:
                    self._refuse_missing(instant, group, time17, log.path)
            if time17 in by_time:
                what = f"log file {by_time[time17]}, whose file slice is not merged and cleaned yet"
                yield time17, f"{instant} wrote {what}"

    def _ambiguous(self) -> Iterator[tuple[str, str]]:
        archived = {i.requested_time for i in self._archived()}
        for (folder, file_id), times in self.counted.items():
            for time17 in {t for t in times if times.count(t) > 1} & archived:
                yield time17, f"file group {joined(folder, file_id)} has two files of {time17}"

    def _visible(self) -> Iterator[tuple[str, str]]:
        """Yield the newest commit before the first file that is not this table's."""
        if self.foreign:
            time17, what = min(self.foreign)
            saved = self.listing.saved
            before = (t for t in self.listing.commit_times if t < time17 and t not in saved)
            yield (
                max(before, default=""),
                f"{what}: readers would show its rows. Move it out of the table",
            )

    def orphans(self, start: str) -> list[str]:
        """Return the files of no commit that would be older than the timeline.

        Raises InvalidTable if their instant was completed, or may have been: of a commit of logs
        only, nothing but its files on the timeline may tell it.
        """
        found = {path: time17 for path, time17 in self.unknown.items() if time17 < start}
        known = traces(self.table, {*found.values()})
        completed = _archived_commits(self.table) if found else frozenset[str]()
        for path, time17 in sorted(found.items()):
            why = known.get(time17)
            if time17 in completed:
                why = "it was archived, beyond a savepoint that is deleted"
            if why is not None:
                raise InvalidTable(
                    f"{self.table.storage.root}/{path} is in no commit, but its instant {time17} "
                    f"was completed ({why}): `fsck` says what to do"
                )
            if self._may_be_lost(path, time17):
                raise InvalidTable(
                    f"{self.table.storage.root}/{path} is in no commit, but nothing says that its "
                    f"instant {time17} was undone: restore {time17}.* on the timeline from a "
                    "backup, or move this log out of the table and keep it"
                )
        return sorted(found)

    def _may_be_lost(self, path: str, time17: str) -> bool:
        """Whether a file of no commit is a log, no copy of another, that was perhaps not undone."""
        if LogFileName.parse(path.rpartition("/")[2]) is None:
            return False
        blocks = read_blocks(path, self.table.storage.fetch(path))
        mine = any(block.instant_time == time17 for block in blocks)
        return mine and not was_rolled_back(self.table, time17)


def _archived_commits(table: TableHandle) -> frozenset[str]:
    """Return the times of the archived commits."""
    found, damage = table.timeline.archive.commits()
    if damage:
        raise InvalidTable(
            f"{damage}, so it is not known whether files of no commit can be deleted: `fsck` says "
            "what to do"
        )
    return found
