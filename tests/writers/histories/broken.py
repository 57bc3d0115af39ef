"""The rules without which a history goes wrong, each of which can be broken on purpose."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.commit import admission, checkpointing, coordinator, publishing, recovery
from hoodie_nb.commit.admission import Admission
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.recovery import Recovery
from hoodie_nb.definition.rules import KeptRules
from hoodie_nb.index import file_keys, lookup, manifest, upkeep
from hoodie_nb.index.manifest import PartitionState
from hoodie_nb.local import settling
from hoodie_nb.local.ahead import Ahead, Luck
from hoodie_nb.local.rewriting import Rewriting
from hoodie_nb.lock import lease, lock, waiting
from hoodie_nb.records import notes, prepared
from hoodie_nb.services import archive
from hoodie_nb.storage import fences
from hoodie_nb.timeline.timeline import Timeline

Patch = pytest.MonkeyPatch
_sources: dict[Callable[..., Any], str] = {}  # of functions that have been changed


def without(function: Callable[..., Any], text: str, instead: str = "") -> Any:
    """Return a function whose source has other text in the one place where it has this one."""
    function = inspect.unwrap(function)
    source = _sources.get(function) or textwrap.dedent(inspect.getsource(function))
    assert source.count(text) == 1, f"{function.__name__} has changed: {text}"
    made: dict[str, Any] = {}
    exec(source.replace(text, instead), function.__globals__, made)
    changed = made[function.__name__]
    _sources[inspect.unwrap(changed)] = source.replace(text, instead)
    return changed


def _changed(owner: Any, name: str, text: str, instead: str = "") -> Callable[[Patch], None]:
    def broken(patch: Patch) -> None:
        patch.setattr(owner, name, without(getattr(owner, name), text, instead))

    return broken


def _set(owner: Any, name: str, value: object) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, value)


def _nothing(*_: object, **__: object) -> None:
    return None


def _lock(patch: Patch) -> None:
    patch.setattr(lock, "lock_file", lambda file, storage, purpose: True)
    patch.setattr(waiting, "is_awaited", lambda *_: False)


def _settling(patch: Patch) -> None:
    patch.setattr(settling, "settle", lambda coordinator, **_: coordinator.recover())


def _stale_manifest(patch: Patch) -> None:
    newest: list[str] = []
    newest_manifest = coordinator.newest_manifest

    def once(storage: Any) -> str:
        newest[:] = newest or [*filter(None, [newest_manifest(storage)])]
        return (newest or [""])[0]

    patch.setattr(coordinator, "newest_manifest", once)


def _gone_manifest(patch: Patch) -> None:
    known: dict[str, manifest.Manifest] = {}
    manifest_of = manifest.manifest_of

    def remembered(plan: WritePlan) -> manifest.Manifest:
        return known.setdefault(plan.manifest, manifest_of(plan))

    def tidy(storage: Any, names: list[str]) -> None:
        for name in names[:-2]:  # the runs stay
            storage.remove(f"{manifest.FOLDER}/{name}")

    patch.setattr(upkeep, "tidy", tidy)
    patch.setattr(lookup, "manifest_of", remembered)
    patch.setattr(file_keys, "manifest_of", remembered)


def _manifests(patch: Patch) -> None:
    def names(storage: Any) -> list[str]:
        entries = sorted(storage.list_folder(manifest.FOLDER), key=lambda entry: entry.modified_ms)
        return [e.name for e in entries if e.name.startswith("manifest-")]

    patch.setattr(upkeep, "manifest_names", names)
    patch.setattr(manifest, "manifest_names", names)
    patch.setattr(upkeep, "_learned", without(upkeep._learned, "manifest.instant >= instant or "))


def _needed(patch: Patch) -> None:
    tidy = coordinator.tidy_after_commit
    patch.setattr(coordinator, "tidy_after_commit", lambda table, _, emit: tidy(table, (), emit))
    plan = archive.plan_archive
    patch.setattr(archive, "plan_archive", lambda table, _, **more: plan(table, (), **more))


def _undone(patch: Patch) -> None:
    known = "records[0].undone or was_rolled_back(table, time17) or"
    patch.setattr(checkpointing, "archived", without(prepared.archived, known, "0 and"))


def _table_id(patch: Patch) -> None:
    refreshed = without(Recovery.forget_records, "self.table.rules.refresh()", "pass")
    patch.setattr(Recovery, "forget_records", refreshed)
    patch.setattr(KeptRules, "keep", without(KeptRules.keep, "self._met or "))


def _kept_records(patch: Patch) -> None:
    abandoned = Recovery._abandoned
    patch.setattr(Recovery, "_abandoned", lambda self, kept: abandoned(self, set()))


def _release(patch: Patch) -> None:
    taken = 'held.take(storage, "a batch write", lambda: until, meanwhile, place=place)'
    kept = without(lock.holding, f"with {taken}:", f"for held.kept in [{taken}]:")
    kept = without(kept, "if not has_it and held.file is not None:", "if False:")
    patch.setattr(lock, "holding", kept)


def _store_clock(patch: Patch) -> None:
    from datetime import UTC, datetime, timedelta

    patch.setattr(lease, "store_time", lambda storage: datetime.now(UTC) + timedelta(hours=1))


BROKEN: dict[str, Callable[[Patch], None]] = {
    # who writes holds the lock from its instant's request until it has completed
    "lock": _lock,
    # nobody takes the lock while a writer waits that came before
    "line": _set(waiting, "is_awaited", lambda *_: False),
    # recovery rolls back what the dead have begun
    "rollback": _set(Recovery, "_abandoned", lambda self, kept: []),
    # but not what is prepared
    "records": _kept_records,
    # nor does it sweep the files of those that wait
    "notes": _set(recovery, "noted", lambda storage: []),
    # what completes is later than all that has completed
    "newest": _changed(WriteCoordinator, "is_current", "and newest < time17 "),
    # what completes has the view of all that has completed
    "current": _set(WriteCoordinator, "is_current", lambda self, records: True),
    # prepared and sealed work goes before one's own instant
    "settling": _settling,
    # what is written again has a new instant
    "new_instant": _changed(Rewriting, "redo", "begin(after=old, ", "begin(at=old, "),
    # its old files are kept until a record names the new ones
    "kept_files": _changed(Rewriting, "redo", "keep_staged=True", "keep_staged=False"),
    # sealed work of all queries is applied together, in the order of arrival
    "arrivals": _changed(
        Checkpointing,
        "_unapplied",
        "if s.checkpoint not in applied",
        "if s.checkpoint not in applied and s.checkpoint.query_id == 'b'",
    ),
    # archiving keeps what a record needs
    "needed": _needed,
    # one that was rolled back has not completed, if it is archived or not
    "undone": _undone,
    # in each turn columns that others have added are taken over
    "columns": _set(Admission, "_adopt", _nothing),
    # and the rules of the table
    "table_id": _table_id,
    # who has the table has a time before what is written ahead
    "earlier": _set(WriteCoordinator, "_first_noted", lambda self: ""),
    # what is written ahead is later than all that has completed
    "later": _changed(Ahead, "fits", 'max(now.commit_times, default="") > self._time17', "False"),
    # and its partitions are as they were
    "slices": _changed(
        Ahead, "fits", "any(groups.partition(path) != known for path, known in", "any(0 for _ in"
    ),
    # only the newest commit that it has seen must still be there
    "last": _changed(Ahead, "fits", "{*plan.groups.instants[-1:]}", "{*plan.groups.instants}"),
    # an error while it is written ahead is left to the turn
    "left": _changed(Ahead, "write", "except _LEFT as error", "except () as error"),
    # no batch of global keys is written ahead
    "global": _changed(Ahead, "_write", "table.config.global_keys or "),
    # nor of version 6
    "version_6": _changed(Ahead, "_write", " or table.timeline.layout.number == 1"),
    # in vain fewer and fewer are
    "luck": _set(Luck, "note", _nothing),
    # the index has a manifest for each instant, later than those before
    "manifests": _manifests,
    # each plan names the newest one
    "manifest": _stale_manifest,
    # if that is gone, nothing is loaded
    "gone": _gone_manifest,
    # what is loaded is so of one slice
    "loaded": _changed(PartitionState, "loaded", " and known.instant == piece.instant_time"),
    # outside its turn a stream changes nothing
    "fence": lambda patch: patch.setattr(fences, "_fences", {}),
    # a record that a store receives late is dropped by the next writer
    "late_records": _set(notes.CommitNotes, "_is_late", lambda *_: False),
    # what must be alone is refused beside a stream between its turns
    "life": _set(waiting, "refuse_living", _nothing),
    # two partitions are not one folder
    "folders": lambda patch: (
        patch.setattr(coordinator, "refuse_colliding_folders", _nothing),
        patch.setattr(admission, "refuse_colliding_folders", _nothing),
    )[0],
    # the lock ends with what holds it
    "release": _release,
    # a lease is over by the clock of the store
    "clock": _store_clock,
    # what was staged is read before it is published
    "verified": lambda patch: patch.setattr(checkpointing, "verify", _nothing),
    # a completed file that arrives after that of another process is deleted by its writer
    "withdrawn": lambda patch: patch.setattr(publishing, "_withdraw", _nothing),
    # a completed file is looked for under any name
    "any_name": _set(Timeline, "under", lambda self, time17: iter(())),
}
