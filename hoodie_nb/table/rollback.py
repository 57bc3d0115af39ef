"""Rolling back an instant that did not complete.

*Work flow*: plan (`R.rollback.requested`, Avro) → `R.rollback.inflight` → delete the data files
that the markers name → remove T from the timeline → `R.rollback` (Avro) → delete the markers. An
instant that published nothing is only removed from the timeline.

*Fault tolerance*: a crash at any point leaves either T with its markers (rolled back again) or a
pending rollback with its plan, which `finish_rollbacks` completes; both are idempotent, in this
library and in Java Hudi. Files named on disk are deleted only if they are base files of T inside
the table.

*Source:* RFC-24 "Fault Tolerance", BaseRollbackPlanActionExecutor, MarkerBasedRollbackStrategy.
"""

import io
import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

import fastavro

from hoodie_nb import failpoints
from hoodie_nb.errors import InvalidTable
from hoodie_nb.table.file_groups import BaseFileName
from hoodie_nb.table.markers import is_data_file, marked_files, marker_folder
from hoodie_nb.table.publish import sweep
from hoodie_nb.table.storage import Storage, read_bytes
from hoodie_nb.table.timeline import Instant, State, Timeline


def _schema(name: str) -> Any:  # noqa: ANN401 -- fastavro's schema
    text = resources.files(__package__).joinpath(f"avro/{name}.avsc").read_text()
    return fastavro.parse_schema(json.loads(text))


_PLAN, _METADATA = _schema("HoodieRollbackPlan"), _schema("HoodieRollbackMetadata")


def roll_back(
    storage: Storage, timeline: Timeline, instant: Instant, *, keep_staged: bool = False
) -> bool:
    """Roll back a pending commit; return whether files had been published.

    Staged files are deleted too, unless they are kept to be applied again. Raises InvalidTable for
    a completed instant: readers use its files.
    """
    if timeline_has_completed(timeline, instant):
        raise InvalidTable(f"{instant} has completed and cannot be rolled back as pending")
    paths = [f for f in marked_files(storage, instant.requested_time) if storage.entry(f)]
    if paths:
        plan = _encode(_PLAN, _plan(storage, instant, paths))
        rollback = timeline.request("rollback", plan)
        failpoints.hit("rollback.plan.post")
        _finish(storage, timeline, rollback, instant, paths)
    else:
        timeline.remove(instant)
    if keep_staged:
        storage.remove(marker_folder(instant.requested_time), tree=True)
    else:
        sweep(storage, {instant.requested_time})
    return bool(paths)


def finish_rollbacks(storage: Storage, timeline: Timeline) -> list[Instant]:
    """Complete all pending rollbacks; return the instants that they rolled back."""
    undone = []
    for rollback in timeline.pending():
        if rollback.action == "rollback":
            instant, files = _read_plan(storage, rollback)
            if timeline_has_completed(timeline, instant):
                raise InvalidTable(
                    f"rollback {rollback.requested_time} is pending for the completed instant "
                    f"{instant.requested_time}: let the engine that started it finish it"
                )
            _finish(storage, timeline, rollback, instant, files)
            undone.append(instant)
    return undone


def was_rolled_back(storage: Storage, timeline: Timeline, requested_time: str) -> bool:
    """Whether a readable completed rollback on the timeline names an instant."""
    for done in timeline.listing.instants:
        if done.action == "rollback" and done.state is State.COMPLETED:
            with suppress(Exception):  # broken Avro raises many kinds of errors
                (record,) = fastavro.reader(io.BytesIO(read_bytes(storage, done.path)))
                named: Any = record
                if requested_time in named["commitsRollback"]:
                    return True
    return False


def timeline_has_completed(timeline: Timeline, instant: Instant) -> bool:
    """Whether the instant's completed file exists."""
    done = timeline.completed(instant.requested_time)
    return done is not None and done.action == instant.action


def _finish(
    storage: Storage,
    timeline: Timeline,
    rollback: Instant,
    instant: Instant,
    files: Sequence[str],
) -> None:
    if rollback.state is State.REQUESTED:
        rollback = timeline.begin(rollback)
    for path in files:
        storage.remove(path)
    for folder in {str(PurePosixPath(path).parent) for path in files}:
        if storage.entry("" if folder == "." else folder):
            storage.sync_folder("" if folder == "." else folder)
    failpoints.hit("rollback.files.post")
    timeline.remove(instant)
    failpoints.hit("rollback.instant.post")
    timeline.complete(rollback, _encode(_METADATA, _metadata(rollback, instant, files)))
    failpoints.hit("rollback.completed.post")
    storage.remove(marker_folder(instant.requested_time), tree=True)


def _by_partition(files: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in files:
        parent = str(PurePosixPath(path).parent)
        found["" if parent == "." else parent].append(path)
    return found


def _info(instant: Instant) -> dict[str, str]:
    return {"commitTime": instant.requested_time, "action": instant.action}


def _plan(storage: Storage, instant: Instant, files: Sequence[str]) -> dict[str, Any]:
    requests = []
    for path in files:
        name = BaseFileName.parse(PurePosixPath(path).name)
        parent = str(PurePosixPath(path).parent)
        requests.append(
            {
                "partitionPath": "" if parent == "." else parent,
                "fileId": name.file_id if name else "",
                "latestBaseInstant": instant.requested_time,
                "filesToBeDeleted": [f"file:{storage.root}/{path}"],
                "logBlocksToBeDeleted": {},
            }
        )
    return {"instantToRollback": _info(instant), "RollbackRequests": requests, "version": 1}


def _metadata(rollback: Instant, instant: Instant, files: Sequence[str]) -> dict[str, Any]:
    partitions = {
        partition: {
            "partitionPath": partition,
            "successDeleteFiles": paths,
            "failedDeleteFiles": [],
            "rollbackLogFiles": {},
            "logFilesFromFailedCommit": {},
        }
        for partition, paths in _by_partition(files).items()
    }
    return {
        "startRollbackTime": rollback.requested_time,
        "timeTakenInMillis": 0,
        "totalFilesDeleted": len(files),
        "commitsRollback": [instant.requested_time],
        "partitionMetadata": partitions,
        "version": 1,
        "instantsRollback": [_info(instant)],
    }


def _encode(schema: Any, record: dict[str, Any]) -> bytes:  # noqa: ANN401 -- fastavro's schema
    out = io.BytesIO()
    fastavro.writer(out, schema, [record])
    return out.getvalue()


def _read_plan(storage: Storage, rollback: Instant) -> tuple[Instant, list[str]]:
    requested = Instant(rollback.requested_time, "rollback", State.REQUESTED)
    try:
        (plan,) = fastavro.reader(io.BytesIO(read_bytes(storage, requested.path)))
        raw: Any = plan
        target = raw["instantToRollback"]
        instant = Instant(target["commitTime"], target["action"], State.INFLIGHT)
        if Instant.parse(instant.file_name) != instant:
            raise ValueError(f"it names {instant}, which is not an instant")
        named = [
            (str(request["partitionPath"]), PurePosixPath(str(path)).name)
            for request in raw["RollbackRequests"] or []
            for path in request["filesToBeDeleted"]
        ]
    except Exception as error:  # broken Avro raises many kinds of errors
        raise InvalidTable(
            f"the plan of the pending rollback {requested.path} cannot be read ({error!r:.200}): "
            "delete its .requested and .inflight files; the rollback will be planned again"
        ) from None
    paths = {f"{partition}/{name}" if partition else name for partition, name in named}
    paths |= set(marked_files(storage, instant.requested_time))
    return instant, sorted(path for path in paths if is_data_file(path, instant.requested_time))
