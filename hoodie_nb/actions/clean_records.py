"""Files of cleans on the timeline: encode and parse them; the earliest time still readable.

*On disk*, Avro in every table version: `T.clean.requested` is the plan, `T.clean` (`T_C.clean` in
layout 2) the result. A plan names absolute paths; only the names of base files and logs in the
partitions of the table are ever used. Java names the logs of a slice in the same list.

*Reads*: a snapshot as of an earlier time must not show an older slice instead of a deleted one. So
the files that it would read are compared with the records of all later cleans, including a pending
one: some of its files may be gone.

*Source:* HoodieCleanerPlan, HoodieCleanMetadata, CleanActionExecutor.
"""

import bisect
import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from hoodie_nb.actions.clean_plan import CleanPlan
from hoodie_nb.actions.plans import read_plan
from hoodie_nb.errors import InvalidConfig, InvalidTable, readable
from hoodie_nb.evidence.outdated import Mark
from hoodie_nb.storage.storage import META, Storage, java_path, joined
from hoodie_nb.timeline.timeline import Instant, State
from hoodie_nb.types.avro_file import decode, encode, load_schema
from hoodie_nb.view.file_groups import BaseFileName, Commits, FileGroups, data_file_name
from hoodie_nb.view.read_handle import ReadHandle
from hoodie_nb.view.views import KEEP_MORE

_PLAN = load_schema("HoodieCleanerPlan")
_RESULT = load_schema("HoodieCleanMetadata")
_SAVEPOINTS = "savepointed_timestamps"


def encode_plan(plan: CleanPlan, storage: Storage) -> bytes:
    """Return the content of the requested file; `read_clean` is the inverse."""
    earliest = plan.earliest and {
        "timestamp": plan.earliest.requested_time,
        "action": plan.earliest.action,
        "state": plan.earliest.state.upper(),
    }
    paths = {
        folder: [_file(java_path(storage.root, joined(folder, name))) for name in names]
        for folder, names in plan.files.items()
    }
    content: dict[str, Any] = {
        "earliestInstantToRetain": earliest,
        "lastCompletedCommitTimestamp": plan.newest,
        "policy": plan.policy,
        "filesToBeDeletedPerPartition": {},
        "version": 2,
        "filePathsToBeDeletedPerPartition": paths,
        "partitionsToBeDeleted": [],
        "extraMetadata": _extra(plan),
    }
    return encode(_PLAN, content)


def _file(path: str) -> dict[str, object]:
    return {"filePath": path, "isBootstrapBaseFile": False}


def encode_result(plan: CleanPlan, instant: Instant, files: Mapping[str, Sequence[str]]) -> bytes:
    """Return the content of the completed file of a clean that deleted `files`."""
    partitions = {
        folder: {
            "partitionPath": folder,
            "policy": plan.policy,
            "deletePathPatterns": [*names],
            "successDeleteFiles": [*names],
            "failedDeleteFiles": [],
            "isPartitionDeleted": False,
        }
        for folder, names in files.items()
    }
    content = {
        "startCleanTime": instant.requested_time,
        "timeTakenInMillis": 0,
        "totalFilesDeleted": sum(map(len, files.values())),
        "earliestCommitToRetain": plan.earliest.requested_time if plan.earliest else "",
        "lastCompletedCommitTimestamp": plan.newest,
        "partitionMetadata": partitions,
        "version": 2,
        "bootstrapPartitionMetadata": {},
        "extraMetadata": _extra(plan),
    }
    return encode(_RESULT, content)


def _extra(plan: CleanPlan) -> dict[str, str]:
    return {_SAVEPOINTS: ",".join(sorted(plan.mark.savepoints))} if plan.mark.savepoints else {}


def read_clean(table: ReadHandle, clean: Instant) -> CleanPlan | None:
    """Return the plan of a pending clean; None if its file is empty: it deletes nothing.

    Raises InvalidTable if it cannot be completed here.
    """
    logs = table.config.merge_on_read
    return read_plan(table, clean, lambda plan: _parsed(decode(plan), logs) if plan else None)


def _parsed(raw: Mapping[str, Any], logs: bool) -> CleanPlan:
    first = raw["earliestInstantToRetain"]
    earliest = first and Instant(first["timestamp"], first["action"], State(first["state"].lower()))
    old = raw["filesToBeDeletedPerPartition"] or {}
    files = {folder: [str(path) for path in paths] for folder, paths in old.items() if paths}
    for folder, found in (raw["filePathsToBeDeletedPerPartition"] or {}).items():
        files.setdefault(folder, []).extend(str(file["filePath"]) for file in found)
    named = {folder: [PurePosixPath(path).name for path in files[folder]] for folder in files}
    for folder, names in named.items():
        pure = PurePosixPath(folder)
        inside = not pure.is_absolute() and ".." not in pure.parts and pure.parts[:1] != (META,)
        if not inside or not all(map(data_file_name if logs else BaseFileName.parse, names)):
            raise ValueError(f"it names other files than those of the table in {folder!r}")
    mark = Mark(0, earliest.requested_time if earliest else "", _savepoints(raw))
    newest = str(raw["lastCompletedCommitTimestamp"] or "")
    return CleanPlan(str(raw["policy"]), earliest, newest, mark, named)


def _savepoints(raw: Mapping[str, Any]) -> frozenset[str]:
    text = (raw.get("extraMetadata") or {}).get(_SAVEPOINTS) or ""
    return frozenset(filter(None, text.split(",")))


def _completed(table: ReadHandle) -> list[Instant]:
    return table.timeline.listing.completed("clean")


def _result(table: ReadHandle, instant: Instant) -> Mapping[str, Any]:
    """Return what a completed clean has done; nothing if its file is empty, as for Hudi."""
    content = table.timeline.read(instant)
    where = f"{table.storage.root}/{table.timeline.path(instant)}"
    with readable(where, "restore it from a backup, or delete it to give earlier times up"):
        found: Mapping[str, Any] = decode(content) if content else {}
        folders = dict(found.get("partitionMetadata") or {})
        deleted = {
            folder: {*done["deletePathPatterns"], *done["successDeleteFiles"]}
            for folder, done in folders.items()
        }
        return {**found, "deleted": deleted}


def last_mark(table: ReadHandle) -> Mark | None:
    """Return how far the newest completed clean has looked; None if a plan must look everywhere."""
    result: Mapping[str, Any] = {}
    with contextlib.suppress(InvalidTable):  # then it must
        result = next((_result(table, i) for i in reversed(_completed(table))), {})
    upto = str(result.get("earliestCommitToRetain") or "")
    if upto and upto >= table.timeline.start(table.timeline.listing):
        return Mark(0, upto, _savepoints(result))
    return None


# --- reads ----------------------------------------------------------------------------------------


def refuse_cleaned(
    table: ReadHandle, found: FileGroups, time17: str, partitions: Collection[str] | None
) -> None:
    """Raise InvalidConfig if a file of the snapshot as of a time was cleaned away.

    `found` are the slices on disk as of that time, of all (None) or some partitions.
    """
    listing = table.timeline.listing
    restoring = listing.pending_of("restore")
    if time17 >= max(listing.commit_times, default="") and not restoring:
        return
    archived = table.timeline.archived()
    saved = time17 in listing.saved
    if archived and not saved and time17 < earliest_time(table) and _was_cleaned(table):
        raise InvalidConfig(
            f"it is not known whether all files of {table.storage.root} as of {time17} are still "
            f"there, since cleans may have been archived: {earliest_hint(table)}"
        )
    known = Commits.of(table.timeline, listing)
    now = functools.cache(lambda: table.view().listed())
    for folder, file_name in _removed(table, time17):
        if partitions is not None and folder not in partitions:
            continue
        name = data_file_name(file_name)
        if name is None or name.instant_time > time17 or (folder, name.file_id) in found.replaced:
            continue
        if not known.count(name.instant_time):
            continue  # a restore has undone its commit since
        piece = found.partition(folder).get(name.file_id)
        if piece is None and archived and _is_gone(now(), folder, name.file_id):
            continue
        if piece is None or piece.instant_time < name.instant_time:
            raise InvalidConfig(
                f"the files of {table.storage.root} as of {time17} were cleaned away "
                f"({joined(folder, file_name)}): {earliest_hint(table)}"
            )


def _is_gone(now: FileGroups, folder: str, file_id: str) -> bool:
    """Whether a file group was replaced by a commit that is archived, if its files were cleaned.

    A clean keeps the newest file of any other group.
    """
    return file_id not in now.partition(folder) and (folder, file_id) not in now.replaced


def _was_cleaned(table: ReadHandle) -> bool:
    """Whether there is, or was archived, a clean; also if it is not known."""
    return any(_completed(table)) or table.timeline.archive.cleaned()


def _removed(table: ReadHandle, after: str) -> Iterator[tuple[str, str]]:
    """Yield partition path and name of what cleans have deleted since, or may be deleting."""
    for instant in table.timeline.listing.pending_of("clean"):
        plan = read_clean(table, instant)
        for folder, names in plan.files.items() if plan else ():
            yield from ((folder, name) for name in names)
    for instant in reversed(_completed(table)):
        if instant.requested_time > after:
            for folder, paths in _result(table, instant)["deleted"].items():
                yield from ((folder, PurePosixPath(path).name) for path in sorted(paths))


def cleaned_files(table: ReadHandle) -> tuple[set[str], str]:
    """Return the paths that cleans have deleted or are about to, and the earliest readable time."""
    removed = {joined(folder, name) for folder, name in _removed(table, "")}
    unknown = table.timeline.archived() and _was_cleaned(table)
    return removed, earliest_time(table) if unknown else ""


def earliest_hint(table: ReadHandle) -> str:
    """Return a text that names the earliest time that can be read, and the options."""
    return f"the earliest time that can be read is {earliest_time(table)}; {KEEP_MORE}"


def earliest_time(table: ReadHandle) -> str:
    """Return the first commit whose files all cleans have kept; empty without commits."""
    listing = table.timeline.listing
    times = listing.commit_times or ("",)
    first = table.timeline.start(listing)
    for instant in _completed(table):
        kept = str(_result(table, instant).get("earliestCommitToRetain") or "")
        before = max(0, bisect.bisect_left(times, kept) - 1) if kept else -1
        first = max(first, times[before])
    return first
