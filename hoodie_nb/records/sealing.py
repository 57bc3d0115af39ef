"""Records of sealed checkpoints (`commit_interval`): format, order of arrival, which are applied.

*On disk*: the records of a checkpoint as sorted runs (Arrow files of keyed rows) in the staging
area, and `.hoodie/.hoodie_nb/sealed/<arrival>-<fingerprint>.json`, put-if-absent, which names them
with their checksums. A seal is durable: the checkpoint may succeed, and its runs are never rolled
back. At the interval's end all runs are applied as one instant (see `composing`) that rewrites each
touched file group once.

*Semantics*: seals are applied in order of arrival, not by batch number, since the batch numbers of
a restored checkpoint folder start again. A seal names the previous one, so that a lost seal is
detected. Arrival numbers are never reused, and every commit has the number of the last applied
seal: an older seal that was restored with a backup of our folder is removed and not applied again.
So has the plan of every restore or rollback by hand, since its commits leave the timeline. Before
the commit the prepared record of the instant names its checkpoints.

An object store may receive a record after its writer has lost the lock, when others have deleted
its runs, which no record named. Nobody was told that such a seal is durable, so it is deleted. It
is known by a mark, `sealed/swept-<folder>`, which is put before runs without a record are deleted,
and stays for ten minutes or more by the store's dates.

**Caveats**: if another engine has archived or undone all our commits, applied seals from a backup
are no longer recognised.

*Source:* RFC-24 STEP3.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from hoodie_nb import failpoints
from hoodie_nb.definition.rules import KeptRules
from hoodie_nb.errors import InvalidTable
from hoodie_nb.lock.lock_file import PATH
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.record_folder import RecordFolder
from hoodie_nb.storage.checksums import LOST, StoredFile
from hoodie_nb.storage.storage import OURS, STAGED, Storage, is_remote

FOLDER = f"{OURS}/sealed"
STAGES = "seal"  # how the names of folders of runs begin
MARK_KEY = "_hoodie_nb_last_arrival"
_NAME = re.compile(r"(\d{12,})-.{0,16}\.json")
_MARK = re.compile(r"-1|\d{1,18}")
_SWEPT = "swept-"
_LATE_MS = 600_000


@dataclass(frozen=True, slots=True)
class Interval:
    """The length of an interval of sealed checkpoints: a number of them, or milliseconds.

    In the `background` they are applied meanwhile; the interval ends in a checkpoint that finds a
    backlog of so many checkpoints, or of an eighth of the memory for a task: it is compressed.
    """

    checkpoints: int | None = None
    duration_ms: int | None = None
    background: bool = False


@dataclass(frozen=True, slots=True)
class Sealed:
    """One sealed checkpoint: its identity, its runs, its arrival number, the previous one.

    `partitions` are the partition paths of its rows, `quarantined` files of refused rows.
    """

    checkpoint: Checkpoint
    runs: tuple[StoredFile, ...]
    sealed_at_ms: int
    arrival: int = 0
    after: Checkpoint | None = None
    partitions: tuple[str, ...] = ()
    quarantined: tuple[StoredFile, ...] = ()

    @property
    def path(self) -> str:
        """Return the record's path; names sort in order of arrival."""
        return f"{FOLDER}/{self.arrival:012d}-{self.checkpoint.fingerprint[:16]}.json"

    @property
    def folders(self) -> set[str]:
        """Return the names of the staging folders with its files."""
        return {PurePosixPath(file.path).parent.name for file in (*self.runs, *self.quarantined)}

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> "Sealed":
        """Return the record with these values, as `asdict` and JSON have them."""
        before = raw["after"]
        return cls(
            Checkpoint(**raw["checkpoint"]),
            tuple(StoredFile(**run) for run in raw["runs"]),
            int(raw["sealed_at_ms"]),
            int(raw["arrival"]),
            None if before is None else Checkpoint(**before),
            tuple(raw["partitions"]),
            tuple(StoredFile(**file) for file in raw["quarantined"]),
        )


class SealedRecords:
    """The sealed checkpoints of one table; seals up to the arrival `applied` do not count.

    `recorded` returns a true value for a checkpoint that the progress records name.
    """

    def __init__(
        self, storage: Storage, rules: KeptRules, recorded: Callable[[Checkpoint], object]
    ) -> None:
        self._storage = storage
        self._recorded = recorded
        self._records = RecordFolder(
            storage, rules, FOLDER, _NAME.fullmatch, Sealed.parse, once=True
        )
        self.refresh = self._records.refresh
        self.applied = -1
        self._undone = -1

    def all(self) -> list[Sealed]:
        """Return the sealed checkpoints by arrival, or raise InvalidTable if one is lost.

        Those that a store received too late are deleted.
        """
        paths = [path for path in self._records.paths() if _arrival(path) > self.applied]
        found = [self._records.read(path) for path in paths]
        if swept := self._swept():
            late = [r.path for r in found if swept & r.folders and not self._is_whole(r)]
            self._records.remove(late)  # not only left out: its name may be used again
            found = [record for record in found if record.path not in late]
        known = {record.checkpoint for record in found}
        for record in found:
            before = record.after
            if before is None or before in known or record.arrival <= self.applied + 1:
                continue
            if not self._recorded(before):  # as it is once it is applied
                raise InvalidTable(
                    f"the record of the sealed checkpoint before {record.path} (batch "
                    f"{before.batch_id} of query {before.query_id}) is missing from "
                    f"{self._storage.root}/{FOLDER}; {LOST}"
                )
        return sorted(found, key=lambda record: record.arrival)

    def add(
        self,
        checkpoint: Checkpoint,
        runs: Iterable[StoredFile],
        now_ms: int,
        *,
        partitions: Iterable[str] = (),
        quarantined: Iterable[StoredFile] = (),
    ) -> None:
        """Seal a checkpoint durably, as the last one."""
        failpoints.hit("coord.seal.pre")
        present = self.all()
        arrival = max([self.applied, *(s.arrival for s in present)]) + 1
        last = present[-1].checkpoint if present else None  # even if prepared: it may be undone
        files = tuple(runs), tuple(quarantined)
        record = Sealed(checkpoint, files[0], now_ms, arrival, last, tuple(partitions), files[1])
        self._storage.sync_folder(STAGED)
        self._records.put(record)
        failpoints.hit("coord.seal.post")

    def take_mark(self, extra: Mapping[str, str], where: str) -> None:
        """Record the last applied arrival number, from our newest commit."""
        mark = extra.get(MARK_KEY, "-1")
        if not _MARK.fullmatch(mark):
            raise InvalidTable(
                f"the newest commit of {where} has {MARK_KEY}={mark:.80}, which is not a number: "
                "restore the commit from a backup"
            )
        self.applied = max(int(mark), self._undone)

    def take_undone(self, notes: Mapping[str, str]) -> None:
        """Record that seals up to a number were applied, by commits that have been undone."""
        self._undone = max([self._undone, *map(int, marks_in(notes).values())])
        self.applied = max(self.applied, self._undone)

    def notes(self) -> dict[str, str]:
        """Return the note for a plan that undoes commits."""
        return {MARK_KEY: str(self.applied)}

    def mark_with(self, checkpoints: Collection[Checkpoint]) -> str:
        """Return the mark for a commit of these checkpoints: the last applied arrival number."""
        seals = self.all() if checkpoints else []
        return str(max([self.applied, *(s.arrival for s in seals if s.checkpoint in checkpoints)]))

    def drop_applied(self) -> None:
        """Remove the restored records of applied seals; the cleanup deletes their runs."""
        self._records.remove([p for p in self._records.paths() if _arrival(p) <= self.applied])

    def _swept(self) -> set[str]:
        """Return the folders of runs that were deleted lately, since no record named them."""
        names = self._records.others()
        return {name.removeprefix(_SWEPT) for name in names if name.startswith(_SWEPT)}

    def _is_whole(self, record: Sealed) -> bool:
        """Whether a record's files are there, as those that somebody has restored."""
        return all(self._storage.entry(f.path) for f in (*record.runs, *record.quarantined))

    def note_swept(self, folders: Iterable[str]) -> None:
        """Before staging folders are deleted: on a store, mark those of runs; drop old marks."""
        if not is_remote(self._storage.root):
            return
        swept = self._swept()
        for folder in folders:
            if folder.startswith(STAGES) and folder not in swept:
                self._storage.put(f"{FOLDER}/{_SWEPT}{folder}", b"")
        lock = self._storage.entry(PATH) if swept else None  # its holder has just replaced it
        if lock is None:
            return
        for path in (f"{FOLDER}/{_SWEPT}{folder}" for folder in swept):
            mark = self._storage.entry(path)
            if mark and lock.modified_ms - mark.modified_ms > _LATE_MS:
                self._storage.remove(path)

    def remove(self, checkpoints: Collection[Checkpoint]) -> None:
        """Remove applied checkpoints, the newest first, and delete their runs."""
        records = [s for s in self.all() if s.checkpoint in checkpoints]
        # after a crash the oldest ones remain, without gaps
        self._records.remove([record.path for record in reversed(records)])
        for record in records:
            for folder in record.folders:
                self._storage.remove(f"{STAGED}/{folder}", tree=True)


def marks_in(notes: Mapping[str, str]) -> dict[str, str]:
    """Return the number of the last applied seal among notes, if it is there."""
    return {k: v for k, v in notes.items() if k == MARK_KEY and _MARK.fullmatch(v)}


def _arrival(path: str) -> int:
    return int(PurePosixPath(path).name.partition("-")[0])
