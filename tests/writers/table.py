"""The table of the model: files, commits, what a reader sees and what a batch writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Change(NamedTuple):
    """An upsert (or a delete) of a key with an ordering value."""

    key: str
    order: int
    deleted: bool = False


class File(NamedTuple):
    """A base file, or a log of changes, of a file group and an instant."""

    group: str
    instant: int
    rows: frozenset[Change]
    log: bool = False


class Commit(NamedTuple):
    """A completed instant."""

    instant: int
    completed: int
    changes: tuple[Change, ...]
    replaced: frozenset[str]
    notes: tuple[int, ...]  # by writer, the checkpoints that are in the table
    seals: int  # of these, the number of arrivals that are applied


class Slice(NamedTuple):
    """The newest file slice of a group: its base file's instant, its rows, deletes in its logs."""

    base: int
    rows: dict[str, Change]
    deletes: dict[str, Change]
    last: int  # the greatest instant of its files


Slices = dict[str, Slice]


def newest_slices(
    files: Iterable[File], commits: Sequence[Commit], event_time: bool = True
) -> Slices:
    """Return what readers see: an instant counts if it has completed, or precedes all that have."""
    done = {commit.instant: commit.completed for commit in commits}
    first = min(done, default=0)
    replaced = {group for commit in commits for group in commit.replaced}
    seen = [
        (file, done.get(file.instant, file.instant))
        for file in files
        if (file.instant in done or file.instant < first) and file.group not in replaced
    ]
    found: Slices = {}
    for file, _ in seen:
        held = found.get(file.group)
        if not file.log and (held is None or held.base < file.instant):
            rows = {row.key: row for row in file.rows}
            found[file.group] = Slice(file.instant, rows, {}, file.instant)
    bases: dict[str, list[int]] = {}
    for file, _ in seen:
        if not file.log:
            bases.setdefault(file.group, []).append(file.instant)
    logs = [(file, completed) for file, completed in seen if file.log]
    for file, completed in sorted(logs, key=lambda pair: pair[0].instant):
        held = found[file.group]
        own = max((base for base in bases[file.group] if base <= completed), default=0)
        if own == held.base:
            for row in sorted(file.rows):
                merge_log(held, row, event_time)
            found[file.group] = held._replace(last=max(held.last, file.instant))
    return found


def merge_log(held: Slice, row: Change, event_time: bool) -> None:
    """Apply a row of a log as Hudi's readers do: by event time a delete is remembered."""
    now = held.rows.get(row.key) or held.deletes.get(row.key)
    if event_time and now is not None and row.order < now.order:
        return
    held.rows.pop(row.key, None)
    held.deletes.pop(row.key, None)
    (held.deletes if row.deleted else held.rows)[row.key] = row


def apply(rows: dict[str, Change], change: Change, event_time: bool) -> None:
    """Apply a change as the dict does that judges: an older row or delete is dropped."""
    now = rows.get(change.key)
    if event_time and now is not None and change.order < now.order:
        return
    if change.deleted:
        rows.pop(change.key, None)
    else:
        rows[change.key] = change


def fold(
    start: Iterable[Change], commits: Sequence[Commit], event_time: bool = True
) -> dict[str, Change]:
    """Return what the table should be: all changes in the order of completion."""
    rows = {row.key: row for row in start}
    for commit in commits:
        for change in commit.changes:
            apply(rows, change, event_time)
    return rows


def rows_of(slices: Slices) -> list[Change]:
    """Return all rows that a reader sees."""
    return [row for held in slices.values() for row in held.rows.values()]


class Written(NamedTuple):
    """What writing a batch onto slices makes, and what it found."""

    files: frozenset[File]
    bases: tuple[tuple[str, int], ...]
    missing: tuple[Change, ...]


def written(
    changes: Sequence[Change],
    slices: Slices,
    instant: int,
    logs: bool,
    event_time: bool,
    fill: bool,
) -> Written:
    """Return the files of a batch: a log for known keys if it may be one, else a base file."""
    group_of = {key: group for group, held in slices.items() for key in held.rows}
    into: dict[str, list[Change]] = {}
    found, missing = {}, []
    for change in changes:
        group = group_of.get(change.key)
        if group is None:
            missing.append(change)
            if change.deleted:
                continue
            group = min(slices) if fill and slices else f"n{instant}"
            group_of[change.key] = group
        if group in slices:
            found[group] = slices[group].base
        into.setdefault(group, []).append(change)
    files = set()
    new = {change.key for change in missing}
    for group, given in into.items():
        held = slices.get(group)
        if logs and held and not new & {c.key for c in given} and not (event_time and held.deletes):
            files.add(File(group, instant, frozenset(given), log=True))
            continue
        rows = dict(held.rows) if held else {}
        before = dict(rows)
        for change in given:
            apply(rows, change, event_time)
        if rows != before:
            files.add(File(group, instant, frozenset(rows.values())))
    return Written(frozenset(files), tuple(sorted(found.items())), tuple(missing))
