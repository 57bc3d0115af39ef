"""`table.fsck(repair=…)`: the repairs and their order; deletes orphans, then rechecks.

*Work flow*, under the table's lock: recover the table as before each write, which completes or
rolls back what is pending, deletes leftovers and restores partition metadata; rewrite the files
whose footer index is wrong; delete the orphans that are certain. Then check again: a finding that
is gone was repaired. "deduplicate" and "accept_loss" also rewrite what `services/repair.py` says.

*Semantics*: no row that a reader shows, or could show after its file is restored, is deleted. An
orphan is certain if a commit on the timeline wrote its partition (of a log: a base file of its file
group), its rows do not name another partition, and its instant is ours and completed without it, or
was rolled back. Findings that are not safe to repair stay, with their cure. ConcurrentWriter while
another process or engine writes.

*Fault tolerance*: each step is idempotent, and so is all of it.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from hoodie_nb.actions.orphans import elsewhere
from hoodie_nb.actions.rollback import was_rolled_back
from hoodie_nb.checks.findings import REPAIRS, Finding
from hoodie_nb.checks.folder_findings import folder_findings
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.errors import InvalidConfig, InvalidTable, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settled
from hoodie_nb.logs.log_name import LogFileName
from hoodie_nb.services.repair import repair
from hoodie_nb.view.file_groups import Group, base_files_at, data_file_name
from hoodie_nb.view.history import History

ASKED = ("deduplicate", "accept_loss")


def cure(table: TableHandle, events: EventLog, how: bool | str) -> list[Finding]:
    """Return the findings, those that were repaired first; the caller holds the lock.

    Raises InvalidConfig if `how` is neither true nor a word of `ASKED`.
    """
    if how is not True and how not in ASKED:
        raise InvalidConfig(f"repair={how!r} is none of True, {', '.join(map(repr, ASKED))}")
    if how == "deduplicate" and table.config.merge_on_read:
        raise InvalidConfig(
            f"repair='deduplicate' is not possible for {table.storage.root}, a merge-on-read "
            "table: restore a backup, or undo the commits that doubled the keys (Table.restore)"
        )
    found = fsck(table.storage)
    codes = {finding.code for finding in found}
    safe = bool(codes & REPAIRS.keys())
    if not (safe or how in ASKED) or "unreadable-table" in codes:
        return found
    try:
        if safe:
            _recover(table, events, found)
        if how in ASKED:
            repair(table, events, **{str(how): True})
        if safe:
            _delete_orphans(table)
    except OSError as error:
        raise WriteFailed(
            f"the repair of {table.storage.root} failed ({error}): cure that, and call it again"
        ) from error
    left = fsck(table.storage)
    texts = {finding.what for finding in left}
    does = {code: "rewritten" for code in codes if how in ASKED} | REPAIRS
    done = [f for f in found if f.what not in texts and f.code in does]
    return [*(replace(finding, repaired=does[finding.code]) for finding in done), *left]


def _recover(table: TableHandle, events: EventLog, found: Sequence[Finding]) -> None:
    """Recover the table; what cannot be recovered stays a finding."""
    for finding in found:
        if finding.code == "damaged-partition-metadata":
            table.storage.remove(finding.path)
    codes = {finding.code for finding in found}
    with suppress(InvalidTable):
        if "wrong-key-index" in codes:
            repair(table, events)
        else:
            settled(table, events)


def _delete_orphans(table: TableHandle) -> None:
    """Delete the base and log files of no commit that no lost commit can have written."""
    named = History.of(table, table.timeline.listing.commits).facts
    written = {path.rpartition("/")[0] for path in named}
    groups = {group for _, group, _ in base_files_at(named)}
    for finding in folder_findings(table, named, logs=table.config.merge_on_read):
        if finding.code == "orphan-file" and _is_certain(table, finding.path, written, groups):
            table.storage.remove(finding.path)


def _is_certain(
    table: TableHandle, path: str, written: Collection[str], groups: Collection[Group]
) -> bool:
    folder, _, file_name = path.rpartition("/")
    name = data_file_name(file_name)
    if name is None or folder not in written:
        return False
    is_log = isinstance(name, LogFileName)
    if (folder, name.file_id) not in groups if is_log else elsewhere(table.storage, path):
        return False
    done = table.timeline.completed(name.instant_time)
    if done is None:
        return was_rolled_back(table, name.instant_time)
    return table.commit_metadata(done).verified
