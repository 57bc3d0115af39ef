"""Clean plan: which old files to delete, by retention (commits, hours or versions).

*Semantics*: the policies of Hudi, each with its number:

| policy | what it retains |
| --- | --- |
| `KEEP_LATEST_COMMITS` (10) | the last commits; without a number, those of the last hour, too |
| `KEEP_LATEST_BY_HOURS` (24) | the commits of the last hours |
| `KEEP_LATEST_FILE_VERSIONS` (3) | the last slices of each file group |

The first two keep what a snapshot as of a retained commit reads, and what one as of the commit
before the first of them reads (Hudi's `KEEP_LATEST_BY_HOURS` keeps less). A slice is read from its
instant until the next one of its group, or until the group is replaced. Slices that a savepoint or
a pending instant may need are kept under each policy, and so is the newest slice of a live group.
A slice of a merge-on-read table is kept or deleted with all its logs.

*The last hour.* Ten commits of a stream with a trigger of two seconds are twenty seconds: too short
for a reader. So unless the number of commits is given, further commits are retained if they

- are of the last hour,
- are among the last `HOUR_COMMITS`, which keeps the timeline short, and
- have made files old that have together at most `_HOUR_SHARE` times the bytes of the partitions
  that they wrote to. An hour of such a stream would be 1,800 versions of each file.

The bytes are known only of the commits by this handle: those of others are not read for this, so
the first commit after a table was opened retains ten.

*Cost*: a plan lists the partitions that commits have changed since the previous plan, and in them
looks at the changed file groups. The first plan of a table that was never cleaned lists all.

*Source:* CleanPlanner, CleanerUtils.getEarliestCommitToRetain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hoodie_nb.config import CLEAN_POLICIES, WriteOptions
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.outdated import HOUR_COMMITS, Mark
from hoodie_nb.logs.log_name import LogFileName
from hoodie_nb.storage.storage import joined, size_of
from hoodie_nb.timeline.timeline import Instant, Listing
from hoodie_nb.view.file_groups import (
    BaseFileName,
    Commits,
    Group,
    data_file_name,
    table_folders,
)
from hoodie_nb.view.history import History
from hoodie_nb.view.logs import Counted, Logs

COMMITS_POLICY, HOURS_POLICY, VERSIONS_POLICY = CLEAN_POLICIES
COMMITS = 10
_HOUR_SHARE = 2
_HOUR_MS = 3_600_000
_NEVER = "9"  # later than any instant


@dataclass(frozen=True, slots=True)
class Retention:
    """A policy of Hudi and its number: commits, hours or versions of a file.

    With `hour`, commits of the last hour are retained, too, within the bounds above.
    """

    policy: str
    number: int
    hour: bool = False

    @classmethod
    def of(cls, options: WriteOptions) -> Retention:
        """Return the retention that a table's options ask for."""
        numbers = {
            COMMITS_POLICY: options.clean_commits or COMMITS,
            HOURS_POLICY: options.clean_hours,
            VERSIONS_POLICY: options.clean_versions,
        }
        hour = options.clean_policy == COMMITS_POLICY and options.clean_commits is None
        return cls(options.clean_policy, numbers[options.clean_policy], hour)

    @property
    def versions(self) -> int:
        """Return how many slices of a group are kept whatever their time; 0 if time decides."""
        return self.number if self.policy == VERSIONS_POLICY else 0


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """The files to delete, names by partition path, and their size in bytes.

    `earliest` is the first instant that is retained (None if versions are counted), `newest` the
    newest completed commit at the time of the plan.
    """

    policy: str
    earliest: Instant | None
    newest: str
    mark: Mark
    files: Mapping[str, Sequence[str]]
    size_bytes: int = 0

    @property
    def paths(self) -> list[str]:
        """Return the files, relative to the table's root."""
        return [joined(folder, name) for folder in self.files for name in self.files[folder]]


def plan_clean(table: TableHandle, retention: Retention, mark: Mark | None = None) -> CleanPlan:
    """Return what to delete now, looking only at what changed since `mark` (None: at everything).

    Nothing is deleted while too few commits have completed, or a restore is pending.
    """
    listing = table.timeline.listing
    savepoints = listing.saved
    earliest = earliest_to_retain(table, listing, retention)
    newest = listing.commit_times[-1] if listing.commit_times else ""
    until = earliest.requested_time if earliest else _NEVER if retention.versions else ""
    upto = newest if retention.versions else until
    new_mark = Mark(retention.versions, upto, savepoints)
    plan = CleanPlan(retention.policy, earliest, newest, new_mark, {})
    if not newest or not until or listing.pending_of("restore"):
        return plan
    if mark and (mark.versions != retention.versions or mark.savepoints - savepoints):
        mark = None
    kept = savepoints | {i.requested_time for i in listing.pending if i.action != "clean"}
    rule = _Rule("" if retention.versions else until, retention.versions, tuple(sorted(kept)))
    files = {}
    changed = _changed(table, mark.upto, until) if mark else None
    by = (i for i in listing.commits if i.action == "replacecommit")
    replaced = History.of(table, by).replaced
    commits = Commits.of(table.timeline, listing)
    logs = Logs(table.timeline, listing, Counted(commits, None), table.logs_named)
    for folder, names in _folders(table, commits, changed):
        gone = sorted(_unneeded(folder, names, replaced, rule, logs))
        if gone:
            files[folder] = gone
    plan = replace(plan, files=files)
    return replace(plan, size_bytes=size_of(table.storage, plan.paths))


def earliest_to_retain(
    table: TableHandle, listing: Listing, retention: Retention
) -> Instant | None:
    """Return the first instant to retain: never one after a pending instant; None if there is none.

    With counted versions there is none.
    """
    commits = listing.commits
    found = None
    if retention.policy == COMMITS_POLICY and len(commits) > retention.number:
        found = commits[-(_of_last_hour(table, commits, retention) or retention.number)]
    if retention.policy == HOURS_POLICY:
        since = _before(table, retention.number)
        found = next((i for i in commits if i.requested_time >= since), None)
    pending = [i for i in listing.pending if i.action not in ("clean", "rollback")]
    if found is None or not pending:
        return found
    return min(found, pending[0], key=lambda instant: instant.requested_time)


def _of_last_hour(table: TableHandle, commits: Sequence[Instant], retention: Retention) -> int:
    """Return how many commits to retain for the last hour; 0 if the number alone counts."""
    if not retention.hour:
        return 0
    since = _before(table, 1)
    groups = table.cached_file_groups
    known = {outdated.instant_time: outdated for outdated in table.outdated}
    old = 0
    partitions = set[str]()
    live = 0
    for kept, instant in enumerate(reversed(commits)):
        outdated = known.get(instant.requested_time)
        if outdated is not None:
            old += outdated.size_bytes
            for path in outdated.partitions - partitions:
                live += sum(piece.total_bytes for piece in groups.partition(path).values())
            partitions |= outdated.partitions
        inside = outdated is not None and instant.requested_time >= since
        if kept >= retention.number and not (inside and old <= _HOUR_SHARE * live):
            return kept
        if kept == HOUR_COMMITS:
            return kept
    return len(commits)


def _before(table: TableHandle, hours: int) -> str:
    """Return the time some hours ago in 17 digits; of UTC and the timeline's zone, the earlier."""
    seconds = max(0, table.clock.now_ms() - hours * _HOUR_MS) // 1000
    zones = [UTC, None] if table.config.local_time else [UTC]
    return min(f"{datetime.fromtimestamp(seconds, zone):%Y%m%d%H%M%S}000" for zone in zones)


# --- which files ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is kept: the newest `versions`, or what is read from `earliest` on; and as of `kept`."""

    earliest: str
    versions: int
    kept: tuple[str, ...]

    def unneeded(self, times: Sequence[str], replaced: str | None) -> list[str]:
        """Return those instants of a file group's slices, in order, that no one reads any more.

        `replaced` is when the group was replaced. Later slices are not visible to any reader, but
        their rows may be the only copy: they are not deleted.
        """
        times = [time17 for time17 in times if time17 <= (replaced or _NEVER)]
        ends = [*times[1:], replaced or _NEVER]
        first_kept = len(times) if replaced else len(times) - self.versions
        found = []
        for number, (start, end) in enumerate(zip(times, ends, strict=False)):
            read = number >= first_kept if self.versions else end >= self.earliest
            if not read and not any(start <= time17 < end for time17 in self.kept):
                found.append(start)
        return found


def _unneeded(
    folder: str,
    names: Sequence[BaseFileName | LogFileName],
    replaced: Mapping[Group, str],
    rule: _Rule,
    logs: Logs,
) -> Iterator[str]:
    """Yield the names of a folder's files that are not needed."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name in names:
        if isinstance(name, BaseFileName):
            groups.setdefault(name.file_id, {}).setdefault(name.instant_time, []).append(str(name))
    for log in sorted(name for name in names if isinstance(name, LogFileName)):
        slices = groups.setdefault(log.file_id, {})
        base = max((start for start in slices if logs.belongs(log, start)), default=None)
        slices.setdefault(base or log.instant_time, []).append(str(log))
    for file_id, slices in groups.items():
        since = replaced.get((folder, file_id))
        if len(slices) > 1 or since is not None:
            for time17 in rule.unneeded(sorted(slices), since):
                yield from slices[time17]


def _changed(table: TableHandle, since: str, until: str) -> dict[str, set[str]]:
    """Return the ids of the file groups, by partition, that commits of a span have changed."""
    found: dict[str, set[str]] = {}
    for instant in table.timeline.listing.commits:
        if since <= instant.requested_time < until:
            said = History.of(table, [instant], keep=False)  # old ones
            for folder, file_id in said.files.keys() | said.replaced.keys():
                found.setdefault(folder, set()).add(file_id)
    return found


def _folders(
    table: TableHandle, commits: Commits, changed: Mapping[str, set[str]] | None
) -> Iterator[tuple[str, list[BaseFileName | LogFileName]]]:
    """Yield the partitions, each with its files that count; only the changed groups' files."""
    parse = data_file_name if table.config.merge_on_read else BaseFileName.parse
    if changed is None:
        parts = (f for f in table_folders(table.storage, commits) if f.is_partition)
        names = (
            (f.path, [entry.name for entry in f.entries if not entry.is_folder]) for f in parts
        )
    else:
        names = ((path, table.storage.file_names(path)) for path in sorted(changed))
    for path, there in names:
        found = [name for name in map(parse, there) if name and commits.count(name.instant_time)]
        yield path, [n for n in found if changed is None or n.file_id in changed[path]]
