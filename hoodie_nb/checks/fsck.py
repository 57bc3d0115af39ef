"""fsck, the run: order of all checks; pending instants, damaged base files, duplicate keys.

Checks: every base file of the snapshot exists with the size and row count in its commit; every file
in a partition is named by a completed commit; there are no pending instants, leftover markers or
staged files; every partition has its metadata file; every footer index finds all keys of its file;
every log file of the snapshot is whole (see `log_findings`); no partition has duplicate keys (the
table, if its keys are global). Nothing is changed: `fsck(repair=True)` makes the repairs that are
safe.
"""

import functools
import itertools
import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.actions.clean_records import cleaned_files, read_clean
from hoodie_nb.actions.restore_plan import read_restore
from hoodie_nb.actions.rollback import being_undone, late_files, read_rollback
from hoodie_nb.checks.archived_files import archived_files
from hoodie_nb.checks.findings import DEDUPLICATE, REPAIR, RESTORE, Finding
from hoodie_nb.checks.folder_findings import folder_findings
from hoodie_nb.checks.log_findings import merged_keys
from hoodie_nb.checks.record_findings import record_findings
from hoodie_nb.checks.row_findings import row_finding
from hoodie_nb.definition.metadata_table import FOLDER
from hoodie_nb.errors import HoodieError, InvalidTable
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.evidence.lost import ACCEPT, vanished
from hoodie_nb.evidence.other_engines import is_overwrite
from hoodie_nb.files.base_file import (
    Footer,
    open_base_file,
    read_footer,
    read_keys,
    stored_schema,
    verify_pages,
)
from hoodie_nb.files.key_range import KeyRange
from hoodie_nb.reading.read import merge_of, without_cleaned
from hoodie_nb.storage.addresses import Address
from hoodie_nb.storage.storage import META, SCRATCH, STAGED, Entry
from hoodie_nb.timeline.timeline import COMMITS, ArchivedMeanwhile, State
from hoodie_nb.view.file_groups import FileSlice, Group, base_files_at
from hoodie_nb.view.history import FileFacts, History
from hoodie_nb.view.views import is_overtaken, until_true

_ATTEMPTS = 3
_THEIRS = ("let the engine that planned it complete or cancel it", "foreign-pending-instant")
_ENGINE = "restore a backup, or let the engine that created the table repair it"
_OURS = {  # the cures in a merge-on-read table of this library, by code
    "damaged-log": RESTORE,
    "duplicate-keys": "restore a backup, or undo the commits that doubled them (Table.restore)",
    "lost-log": f"restore it from a backup, or {ACCEPT}",
}
_DROPPING = "Table.open(path, drop_metadata_table=True)"
_DROP = "write once with Table.open(path, drop_metadata_table=True), or delete the folder"
_PLANS = {"clean": read_clean, "restore": read_restore, "rollback": read_rollback}


def fsck(path: Address) -> list[Finding]:
    """Return all findings; empty if the table is clean.

    What a clean, rollback or restore deletes meanwhile is not a finding: the check is repeated.
    """
    for _ in range(_ATTEMPTS):
        try:
            table = open_table(path)
            seen = table.timeline.refresh()
        except HoodieError as error:
            return _no_other(error)
        failure: OSError | None = None
        try:
            found = until_true(functools.partial(_findings, table), ArchivedMeanwhile)
        except HoodieError as error:
            found = _no_other(error)
        except OSError as error:  # such as a file that is gone
            found = []
            failure = error
        if not (found or failure) or not is_overtaken(table, seen):
            break
    if failure:
        raise failure
    return found


def _no_other(error: HoodieError) -> list[Finding]:
    fix = "do what the text says, then run fsck again: no other check was possible"
    return [Finding(str(error), fix, "unreadable-table")]


def _findings(table: TableHandle) -> list[Finding]:
    looks = (_leftovers, _late, _twice, record_findings)
    found = [finding for look in looks for finding in look(table)]
    damaged: set[str] = set()
    found += [*_files(table, damaged), *_keys(table, damaged)]
    if table.config.metadata_partitions:  # every repair needs it dropped
        found = [replace(f, fix=f.fix.replace("Table.open(path)", _DROPPING)) for f in found]
    if not table.config.merge_on_read:
        return found
    if _is_foreign(table):  # repairs are not possible
        return [replace(f, fix=_ENGINE) if "Table.open(" in f.fix else f for f in found]
    return [replace(f, fix=_OURS.get(f.code, f.fix)) for f in found]


def _is_foreign(table: TableHandle) -> bool:
    """Whether the table is a merge-on-read table that this library does not write."""
    with suppress(InvalidTable):  # the rules cannot be read: a finding of its own
        foreign = bool(table.config.refusal) or not table.rules.known
        return table.config.merge_on_read and foreign
    return False


def _late(table: TableHandle) -> Iterator[Finding]:
    """Find completed files that were written after another process had rolled their commit back."""
    listing = table.timeline.refresh()
    left, hides = table.timeline.left_archived()
    for done in left if hides else ():
        what = f"{table.timeline.path(done)} came after the commit was archived, and hides rows"
        yield Finding(what, f"{REPAIR}, unless a write is running", "late-archived-file")
    for done in late_files(table, listing):
        yield Finding(
            f"{table.timeline.path(done)} was written after the commit was rolled back: its "
            "writer had lost the lock, and got an error",
            "delete that file; the data of that commit must be written again",
            "late-completed-file",
        )


def _twice(table: TableHandle) -> Iterator[Finding]:
    """Find completed files of one commit that differ in the completion time (from version 8 on)."""
    layout = table.timeline.layout
    parsed = map(layout.parse, sorted(table.timeline.listing.names))
    commits = (i for i in parsed if i and i.action in COMMITS and i.state is State.COMPLETED)
    for _, same in itertools.groupby(commits, operator.attrgetter("requested_time")):
        paths = [*map(layout.path, same)]
        for path in paths[1:]:
            yield Finding(
                f"{path} completes a commit for which there is {paths[0]}: one of them was "
                "written late, by a process that had lost the lock",
                "delete that file: both say the same",
                "second-completed-file",
            )


def _leftovers(table: TableHandle) -> Iterator[Finding]:
    next_write = f"{REPAIR}, unless a write is running"
    listing = table.timeline.listing
    restoring = listing.pending_of("restore")
    undone = being_undone(table)
    foreign = _is_foreign(table)  # then no instant is ours
    logs = ["deltacommit"] if table.config.merge_on_read else []
    ours = (*_PLANS, "commit", "savepoint", *logs)
    for instant in listing.pending:
        known = restoring or instant.requested_time in undone
        commit = instant.action in COMMITS and not known and not foreign
        lost = vanished(table, instant) if commit else None
        mine = instant.action in ours or is_overwrite(table.timeline, instant)
        own = mine and not foreign
        fix, code = (next_write, "pending-instant") if own else _THEIRS
        of_restore = restoring and instant.action == "rollback"  # which completes it
        if instant.action in _PLANS and not of_restore:
            try:
                _PLANS[instant.action](table, instant)
            except InvalidTable as error:
                fix = str(error)
                code = "unreadable-plan"
        if lost is not None:
            yield Finding(*lost, "lost-completed-file")
        else:
            yield Finding(f"instant {instant} is pending", fix, code)
    if table.storage.entry(FOLDER) and not table.config.metadata_partitions:
        what = f"{FOLDER} is a leftover of a metadata table that was dropped"
        yield Finding(what, _DROP, "leftover-metadata-table")
    for folder in (STAGED, SCRATCH, f"{META}/.temp"):
        for entry in table.storage.list_folder(folder):
            yield Finding(f"{folder}/{entry.name} is a leftover", next_write, "leftover")


def _files(table: TableHandle, damaged: set[str]) -> Iterator[Finding]:
    """Compare the partitions with the commits of the active timeline; note damaged files."""
    history = History.of(table, table.timeline.listing.commits)
    replaced = history.replaced
    ours = table.config.merge_on_read and not _is_foreign(table)
    yield from folder_findings(table, history.facts, logs=ours)
    pieces = [*table.file_groups()]
    pieces = [replace(piece, logs=()) for piece in pieces if piece.file_name]
    latest = {piece.path for piece in pieces}
    slices = {(piece.partition_path, piece.file_id): piece.instant_time for piece in pieces}
    newest = dict.fromkeys(replaced, "9") | slices  # replaced files may have been cleaned
    facts = {**archived_files(table), **history.facts}
    cleaned = _cleaned_of_undone(table)
    for path, group, name in base_files_at(sorted(facts)):
        entry = table.storage.entry(path)
        if entry is None:
            if newest.get(group, "") <= name.instant_time and path not in cleaned:
                what = f"{path} is missing: readers show an older slice or no rows"
                yield Finding(what, f"restore it from a backup, or {ACCEPT}", "lost-base-file")
            continue
        damage = _damage(table, path, entry, facts[path], latest=path in latest)
        if damage is not None:
            damaged.add(path)
            yield Finding(damage, RESTORE, "damaged-base-file")
        if group in replaced and name.instant_time > replaced[group]:
            yield Finding(
                f"{path} was written after replacecommit {replaced[group]} replaced its file "
                "group: no reader shows its rows",
                "write its rows again from the source, or read it and upsert them; then delete it",
                "replaced-file-group",
            )
    yield from _hidden(table, history, newest)
    yield from _older(table, slices, history)


def _hidden(table: TableHandle, history: History, newest: Mapping[Group, str]) -> Iterator[Finding]:
    """Find files whose commit sorts before the slice it was built on: its clock had gone back.

    One deleted by hand is no finding, as its rows were then written again; a clean says nothing.
    """
    cleaned: Collection[str] | None = None
    for path, group, name in base_files_at(history.facts):
        before = history.facts[path].previous or ""
        if not before.isdigit() or name.instant_time >= min(before, newest.get(group, "")):
            continue
        there = table.storage.entry(path) is not None
        if not there and cleaned is None:
            cleaned = cleaned_files(table)[0]
        if there or path in (cleaned or ()):
            yield Finding(
                f"commit {name.instant_time} wrote {path} upon the slice of {before}, which sorts "
                "after it: no reader shows its rows and deletes",
                f"set the writer's time zone of before, or its clock past {before}, and write the "
                "rows and deletes of that commit again; then delete that file, if it is still "
                "there (else this finding ends when the commit is archived)",
                "hidden-slice",
            )


def _cleaned_of_undone(table: TableHandle) -> set[str]:
    """Return the files that cleans have deleted, if a restore has begun to undo what followed."""
    with suppress(InvalidTable):  # a clean cannot be read: it is a finding of its own
        if table.timeline.listing.pending_of("restore"):
            return cleaned_files(table)[0]
    return set()


def _older(table: TableHandle, slices: Mapping[Group, str], history: History) -> Iterator[Finding]:
    """Find older files that no clean has deleted: reads as of their time would lack rows."""
    with suppress(InvalidTable):  # a plan cannot be read: it is a finding of its own
        cleaned, earliest = cleaned_files(table)
        for group, files in history.files.items():
            ends = [slices.get(group, ""), history.replaced.get(group, "")]
            built_on = [history.facts[path].previous for _, path in sorted(files.items())]
            for time17, path, end in _used(sorted(files.items()), built_on, ends):
                if end > earliest and path not in cleaned and not table.storage.entry(path):
                    what = f"{path} is missing: reads as of {time17} until {end} lack its rows"
                    fix = "restore it from a backup; without one these rows are lost for such reads"
                    yield Finding(what, fix, "lost-older-file")


def _used(
    files: Sequence[tuple[str, str]], built_on: Sequence[object], ends: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield time and path of older files of a group, and the time up to which they are read.

    If the next file was not built on a file, that one was lost, and its loss was accepted.
    """
    since = 0
    for number, ((before, _), previous) in enumerate(zip(files, built_on[1:], strict=False), 1):
        since = since if previous == before else number
    times = sorted({*dict(files), *ends})
    for time17, path in files[since:]:
        end = next((each for each in times if each > time17), "")
        if end:
            yield time17, path, end


def _damage(
    table: TableHandle, path: str, entry: Entry, known: FileFacts, *, latest: bool
) -> str | None:
    """Return how a file differs from its commit; one that cannot be read is found with its keys."""
    size, rows, _ = known
    if size is not None and entry.size_bytes != size:
        return f"{path} has {entry.size_bytes} bytes, but its commit says {size}"
    stored = rows
    if latest:
        with suppress(HoodieError):
            stored = open_base_file(table.storage.fetch(path)).metadata.num_rows
    if rows is not None and stored != rows:
        return f"{path} has {stored} rows, but its commit says {rows}"
    return None


def _keys(table: TableHandle, damaged: set[str]) -> Iterator[Finding]:
    seen: dict[str, list[pa.Array]] = {}
    computed = False  # the texts of keys and partitions, which are ours if rules are kept
    with suppress(InvalidTable):
        computed = table.rules.known
    groups = without_cleaned(table, table.file_groups())
    merge = merge_of(table, groups, stored_schema(table.schema))
    for piece in groups:
        found: list[Finding] = []
        base = replace(piece, logs=())
        keys = _base_keys(table, base, damaged, found, computed=computed) if base.paths else None
        if piece.logs:
            merges = keys is not None or not base.paths
            keys = merged_keys(table, piece, merge, found, merges=merges)
        yield from found
        if keys is not None:
            everywhere = table.config.global_keys
            place = "the table" if everywhere else f"partition {piece.partition_path!r}"
            seen.setdefault(place, []).append(keys)
    for place, parts in seen.items():
        keys = pa.concat_arrays(parts)
        doubled = len(keys) - len(pc.unique(keys))
        if doubled:
            what = f"{place} has {doubled} duplicate keys"
            yield Finding(what, DEDUPLICATE, "duplicate-keys")


def _base_keys(
    table: TableHandle,
    piece: FileSlice,
    damaged: set[str],
    found: list[Finding],
    *,
    computed: bool,
) -> pa.Array | None:
    """Return the keys of a base file, None if it cannot be read; add what is wrong to `found`."""
    local = table.storage.fetch(piece.path)
    try:
        verify_pages(local)
        footer = read_footer(open_base_file(local))
        keys = read_keys(local)
    except HoodieError as error:
        if piece.path in damaged:
            return None
        if os.access(local, os.R_OK):
            found.append(Finding(str(error), RESTORE, "damaged-base-file"))
        else:
            found.append(Finding(str(error), "let this user read it", "unreadable-base-file"))
        return None
    moved = row_finding(table, piece, local, computed=computed)
    if moved is not None:
        found.append(moved)
    wrong = index_objection(footer, keys)
    if wrong:
        what = f"{piece.path}: {wrong}, so an upsert would duplicate them"
        found.append(Finding(what, REPAIR, "wrong-key-index"))
    return keys


def index_objection(footer: Footer, keys: pa.Array) -> str | None:
    """Return what is wrong with the index of a file with these `keys`; None if it finds all.

    A file without rows needs no index; one without range or bloom is read for every key.
    """
    try:
        bloom = footer.bloom()
    except InvalidTable as error:
        return str(error)
    if bloom is not None and len(keys) and not bloom.might_contain(keys).all():
        return "its bloom filter misses keys"
    held = KeyRange.of(keys)
    low = footer.min_key
    high = footer.max_key
    if held and low is not None and high is not None and not held.within(low, high):
        return "its key range excludes some of its keys"
    return None
