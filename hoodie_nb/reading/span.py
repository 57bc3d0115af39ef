"""Commits after `since` up to `until`: the files they changed; refused if too old or cleaned.

The commits name the file groups that they wrote or replaced; no other partition is listed. They
also name the slice that each group had before; of one that was only replaced, earlier commits do.
A slice that is no longer on disk (Hudi's cleaner removed it, or it was lost) is reported, never
replaced by an older one. Of a merge-on-read table commits name logs, too; they do not say what was
there before, so its slices are those of two snapshots. Commits that were archived are not read; a
span that may contain one is refused, unless it begins at the start and the snapshot at its end is
whole.

*Source:* HoodieWriteStat.prevCommit, HoodieReplaceCommitMetadata, IncrementalRelation.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hoodie_nb.actions.clean_records import earliest_hint, refuse_cleaned
from hoodie_nb.actions.restore_plan import restores, undone_by
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.logs.folding import LogMerge
from hoodie_nb.reading.positions import position_of
from hoodie_nb.reading.read import merge_of, slices_as_of, without_cleaned
from hoodie_nb.storage.storage import joined
from hoodie_nb.timeline.timeline import COMMITS, Instant, State, Timeline
from hoodie_nb.types.avro_file import decode
from hoodie_nb.view.file_groups import FileGroups, FileSlice, Group, base_files_at
from hoodie_nb.view.history import History
from hoodie_nb.view.logs import log_groups
from hoodie_nb.view.moments import parse_time
from hoodie_nb.view.read_handle import ReadHandle

_NONE = "null"  # Hudi's `prevCommit` of a new file group


@dataclass(frozen=True, slots=True)
class SlicePair:
    """A file group's slices before and after a span (None: it had none), and how to merge each."""

    before: FileSlice | None
    after: FileSlice | None
    merges: tuple[LogMerge, LogMerge]


@dataclass(slots=True)
class _Writes:
    """What the commits of a span say about a file group.

    `before` and `after` are the instant and the path of its slice; None if they do not say it. An
    empty instant: it had no slice.
    """

    before: tuple[str, str] | None = None
    after: tuple[str, str] | None = None
    replaced: bool = False

    def add(self, instant_time: str, stat: Mapping[str, Any]) -> None:
        """Add a base file that a commit wrote; commits are added oldest first."""
        previous = str(stat.get("prevCommit") or _NONE)
        if self.before is None and previous != instant_time:  # else another part of this instant
            name = stat.get("prevBaseFile") or f"{stat.get('fileId')}_*_{previous}.parquet"
            file = joined(stat["path"].rpartition("/")[0], str(name))
            self.before = ("", file) if previous == _NONE else (previous, file)
        self.after = instant_time, stat["path"]


@dataclass(frozen=True, slots=True)
class Span:
    """The commits after `first` (empty: from the start) up to `last`, in 17 digits."""

    table: ReadHandle
    first: str
    last: str

    @classmethod
    def of(cls, table: ReadHandle, since: object, until: object) -> "Span":
        """Return the span between a position (None: the start) and a moment (None: now)."""
        first = "" if since is None else position_of(table, since)
        done = [i.requested_time for i in table.timeline.completed_commits()]
        last = max([first, *done]) if until is None else parse_time(until, table.config)
        if last < first:
            raise InvalidConfig(f"`until` {last} is before `since` {first}: give a later one")
        span = cls(table, first, last)
        span._refuse_pending()
        return span

    def pairs(self) -> list[list[SlicePair]]:
        """Return the slices to compare, partition by partition."""
        writes = self._writes(self.table.timeline.completed_commits())
        self._refuse_archived(writes)
        before = FileGroups()
        after = self._after(writes)
        if self.first:
            before = self._slices(self.first, writes)
        else:
            writes = {(s.partition_path, s.file_id): _Writes() for s in after} | writes
        found: dict[str, list[SlicePair]] = {}
        stored = stored_schema(self.table.schema)
        merges = merge_of(self.table, before, stored), merge_of(self.table, after, stored)
        for group in sorted(writes.keys() - before.replaced):
            pair = SlicePair(*self._pair(group, writes[group], before, after), merges)
            if pair.before != pair.after or merges[0].counts != merges[1].counts:
                found.setdefault(group[0], []).append(pair)
        return list(found.values())

    def _writes(self, commits: Sequence[Instant]) -> dict[Group, _Writes]:
        """Return the file groups that the commits of the span wrote or replaced."""
        found: dict[Group, _Writes] = {}
        for instant in commits:
            if self.first < instant.requested_time <= self.last:
                commit = self.table.commit_metadata(instant)
                for path, group, _ in base_files_at(commit.files):
                    known = found.setdefault(group, _Writes())
                    known.add(instant.requested_time, commit.files[path])
                for group in commit.replaced_groups:
                    found.setdefault(group, _Writes()).replaced = True
                for group in log_groups(commit.files):
                    found.setdefault(group, _Writes())
        if self.table.config.merge_on_read:
            return found  # commits of logs do not say what was there before
        unknown = {group for group, writes in found.items() if writes.before is None}
        for instant in reversed([i for i in commits if i.requested_time <= self.first]):
            earlier = History.of(self.table, [instant] if unknown else ()).newest
            for group in unknown & earlier.keys():
                found[group].before = earlier[group]
            unknown -= earlier.keys()
        return found

    def _after(self, writes: Mapping[Group, object]) -> FileGroups:
        """Return the slices at the end; InvalidConfig if those of archived commits are gone."""
        if not self.first and self.table.timeline.archived():
            return slices_as_of(self.table, self.last)
        return self._slices(self.last, writes if self.first else None)

    def _slices(self, time17: str, writes: Mapping[Group, object] | None) -> FileGroups:
        """Return the slices as of a time; of a merge-on-read table no file may have been cleaned.

        The files of other tables are compared with what the commits say of them, group by group.
        """
        folders = None if writes is None else sorted({folder for folder, _ in writes})
        found = self.table.view(time17).listed(folders)
        if self.table.config.merge_on_read:
            found = without_cleaned(self.table, found)
            refuse_cleaned(self.table, found, time17, folders)
        return found

    def _refuse_pending(self) -> None:
        """Raise InvalidConfig if a reader that continues there would miss a commit that is open."""
        for instant in open_commits(self.table.timeline):
            if self.first < instant.requested_time <= self.last:
                raise InvalidConfig(
                    f"{instant} of the table at {self.table.storage.root} started before `until` "
                    f"{self.last} and has not completed, so a reader that continues there would "
                    "miss its changes: give an older commit as `until` (`table.history()` lists "
                    "them), or wait until it is completed or rolled back"
                )

    def _refuse_archived(self, writes: Mapping[Group, _Writes]) -> None:
        """Raise InvalidConfig if commits of the span, or files as of its end, may be unknown."""
        timeline = self.table.timeline
        oldest = timeline.start(timeline.listing)
        if oldest and oldest <= self.first:
            return
        if oldest and not self.first and oldest <= self.last:
            return  # all rows are inserts
        earlier = any(w.before and "" < w.before[0] < oldest for w in writes.values())
        if earlier or timeline.archived():
            later = f"give {oldest} or a later time as `since`, or neither `since` nor `until`"
            if self.first:
                later += f"; a copy that was read up to {self.first} must be read again"
            raise InvalidConfig(
                f"{f'commits before {oldest}' if oldest else 'all commits'} of the table at "
                f"{self.table.storage.root} were archived, so its changes from "
                f"{self.first or 'the start'} to {self.last or 'now'} are not known: "
                f"{later if oldest else 'restore the newest commit from a backup'}"
            )

    def _pair(
        self, group: Group, known: _Writes, before: FileGroups, after: FileGroups
    ) -> tuple[FileSlice | None, FileSlice | None]:
        """Return the slices of a group, which must be those that the commits name."""
        old, new = (view.partition(group[0]).get(group[1]) for view in (before, after))
        if known.after and group not in after.replaced and _time(new) != known.after[0]:
            self._refuse_missing(*known.after, "until", self.last)
        if self.table.config.merge_on_read:
            return old, new
        if self.first and known.before and _time(old) != known.before[0]:
            self._refuse_missing(*known.before, "since", self.first)
        if self.first and known.replaced and not known.before and old is None:
            file = joined(group[0], f"{group[1]}_*.parquet")
            self._refuse_missing("an earlier instant", file, "since", self.first)
        return old, new

    def _refuse_missing(self, instant: str, path: str, option: str, time17: str) -> NoReturn:
        found = self.table.timeline.listing.instants
        cleaned = any(i.action == "clean" for i in found) or self.table.timeline.archived()
        cause = "a cleaner removed it, or it was lost (`fsck` says which)"
        hint = f"; {earliest_hint(self.table)}" if cleaned else ""
        raise (InvalidConfig if cleaned else InvalidTable)(
            f"{self.table.storage.root}/{path}, written by {instant or 'an unknown instant'}, is "
            f"not the slice of its file group as of `{option}` {time17}: "
            f"{cause if cleaned else 'it was lost'}. Give a newer `{option}`, or restore the file"
            f"{hint}"
        )


def _time(piece: FileSlice | None) -> str:
    return "" if piece is None else piece.instant_time


def settled_commits(table: ReadHandle) -> list[str]:
    """Return the times of the commits that no open one precedes, oldest first.

    Who has read up to one of them misses nothing that completes later. Those that a pending restore
    or rollback undoes are left out.
    """
    timeline = table.timeline
    with timeline.listed_once():
        open_since = {i.requested_time for i in open_commits(timeline)}
        for pending in (i for i in restores(table) if i.state is not State.COMPLETED):
            open_since |= undone_by(table, pending)
        done = [i.requested_time for i in timeline.completed_commits()]
    return [time17 for time17 in done if time17 < min(open_since, default="9")]


def open_commits(timeline: Timeline) -> Iterator[Instant]:
    """Yield the pending commits that may change rows, oldest first."""
    for instant in timeline.pending():
        if instant.action in COMMITS and not _is_clustering(timeline, instant):
            yield instant


def _is_clustering(timeline: Timeline, pending: Instant) -> bool:
    """Whether a pending instant is known to be a clustering, which changes no rows.

    Layout 2 says so in the file's name, layout 1 only in the plan.
    """
    if pending.action != "replacecommit":
        return False
    if f"{pending.requested_time}.clustering.requested" in timeline.listing.names:
        return True
    with contextlib.suppress(ValueError, OSError):
        plan = decode(timeline.read(pending.requested))
        return isinstance(plan, dict) and plan.get("operationType") == "CLUSTER"
    return False
