"""Files of restores on the timeline: encode and parse them; which commits were undone.

*On disk*, Avro in every table version: `R.restore.requested` is the plan, `R.restore` (in layout 2
`R_C.restore`) the result, with the record of each commit's rollback. Commits that were undone are
no longer on the timeline, so the plans are all that is known about them (see `positions`).

*Source:* HoodieRestorePlan, HoodieRestoreMetadata, RestorePlanActionExecutor.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hoodie_nb.actions.plans import read_plan
from hoodie_nb.actions.rollback import info_of, named_instant, undone_by_rollback
from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.timeline.timeline import COMMITS, Instant, State
from hoodie_nb.types.avro_file import decode, encode, load_schema, notes_of
from hoodie_nb.view.file_groups import Commits, table_folders
from hoodie_nb.view.logs import data_files
from hoodie_nb.view.read_handle import ReadHandle

_PLAN = load_schema("HoodieRestorePlan")
_RESULT = load_schema("HoodieRestoreMetadata")
ACTION = "restore"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The commits to undo, newest first, and the one before them (empty: not recorded)."""

    to: str
    undone: tuple[Instant, ...]

    @property
    def times(self) -> list[str]:
        """Return the times of the commits to undo."""
        return [instant.requested_time for instant in self.undone]


def files_of(table: ReadHandle, times: list[str]) -> dict[str, list[str]]:
    """Return the base and log files of each of these instants, also those that no commit names.

    Paths are from the table's root. One that remained would be visible after an archiving.
    """
    known = Commits.of(table.timeline)
    found: dict[str, list[str]] = {time17: [] for time17 in times}
    counted = replace(known, completed=known.completed | found.keys())
    for folder in table_folders(table.storage, counted):
        for file in data_files(folder, logs=table.config.merge_on_read):
            if folder.is_partition and file.name.instant_time in found:
                found[file.name.instant_time].append(file.path)
    return found


def encode_plan(plan: RestorePlan, notes: Mapping[str, str]) -> bytes:
    """Return the content of the requested file, for `read_restore` and `notes_by`."""
    undone = [info_of(instant) for instant in plan.undone]
    content = {"instantsToRollback": undone, "version": 2, "savepointToRestoreTimestamp": plan.to}
    return encode(_PLAN, content, {**notes})


def encode_result(
    plan: RestorePlan, instant: Instant, rollbacks: Mapping[str, Mapping[str, Any]]
) -> bytes:
    """Return the content of the completed file; `rollbacks` are the records by commit."""
    content = {
        "startRestoreTime": instant.requested_time,
        "timeTakenInMillis": 0,
        "instantsToRollback": plan.times,
        "hoodieRestoreMetadata": {t: [rollbacks[t]] for t in plan.times if t in rollbacks},
        "version": 1,
        "restoreInstantInfo": [info_of(undone) for undone in plan.undone],
    }
    return encode(_RESULT, content)


def read_restore(table: ReadHandle, restore: Instant) -> RestorePlan:
    """Return the plan of a restore; InvalidTable if it cannot be completed here."""

    def parsed(content: bytes) -> RestorePlan:
        raw = decode(content)
        undone = [named_instant(table, named, restore) for named in raw["instantsToRollback"]]
        for instant in undone:
            if instant.action not in COMMITS:
                raise ValueError(f"it names {instant}, which is not a commit")
        return RestorePlan(str(raw.get("savepointToRestoreTimestamp") or ""), tuple(undone))

    return read_plan(table, restore, parsed)


# --- what was undone ------------------------------------------------------------------------------


def restores(table: ReadHandle) -> list[Instant]:
    """Return the restores and rollbacks on the timeline, oldest first."""
    return [i for i in table.timeline.listing.instants if i.action in (ACTION, "rollback")]


def undone_by(table: ReadHandle, restore: Instant) -> frozenset[str]:
    """Return the times of the completed commits that were undone, or will be.

    Not that of a commit that had failed: nobody has read it. InvalidTable if it is not known.
    """
    known = table.undone
    at = restore.requested_time
    if at not in known:
        rolled_back = restore.action == "rollback"
        known[at] = undone_by_rollback(table, restore) if rolled_back else _undone(table, restore)
    return known[at]


def notes_by(table: ReadHandle, restore: Instant) -> Mapping[str, str]:
    """Return the notes in the plan of a restore or rollback; none if it cannot be read."""
    timeline = table.timeline
    there = timeline.listing.has(restore.requested)
    return notes_of(timeline.read(restore.requested)) if there else {}


def _undone(table: ReadHandle, restore: Instant) -> frozenset[str]:
    try:
        return frozenset(read_restore(table, restore).times)
    except (InvalidTable, ConcurrentWriter):
        if restore.state is State.COMPLETED:
            with contextlib.suppress(ValueError, LookupError, TypeError, OSError):
                raw = decode(table.timeline.read(restore))  # older versions of Hudi have no plan
                return frozenset(map(str, raw["instantsToRollback"]))
        raise
