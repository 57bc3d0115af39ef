"""Records of prepared checkpoints: format, verification of staged files, conflicts of tasks.

*On disk*: `.hoodie/.hoodie_nb/prepared/<T>.<ordinal>.json`, put-if-absent, one for each checkpoint
of instant T: its identity, its write statuses, and the completed instants its files were built on.
The files themselves are staged. From now on the checkpoint is always committed, by the next writer
if necessary. The success notification decides when, never whether.

An instant whose notifications are lost spans several checkpoints. A later checkpoint of the same
instant builds on the earlier ones' staged files and supersedes them: of each file group only the
last file is published.

A redone record names the instant that it replaces; the replaced record no longer counts. A record
of sealed checkpoints is deleted after their seals: it shows that they are applied.

Record, staged files and staged deletes have checksums; a lost record is detected by the ordinals of
its instant, or by the position of its query.

*Source:* RFC-24 STEP3, the coordinator's event buffer, HUDI-9570.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from hoodie_nb.actions.publish import staged_folder
from hoodie_nb.actions.rollback import was_rolled_back
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.definition.rules import KeptRules
from hoodie_nb.errors import InvalidTable, WriteFailed
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.machine import threads
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.record_folder import RecordFolder
from hoodie_nb.storage.checksums import LOST, StoredFile
from hoodie_nb.storage.storage import OURS, STAGED, Storage, is_remote
from hoodie_nb.timeline.commits import WriteStatus, action_of
from hoodie_nb.timeline.timeline import Instant, State
from hoodie_nb.view.file_groups import data_file_name

FOLDER = f"{OURS}/prepared"
_NAME = re.compile(r"\d.*\.json")


@dataclass(frozen=True, slots=True)
class Prepared:
    """One prepared checkpoint of the instant `instant_time` (all of them, if it was redone).

    `from_seals`: its rows are those of sealed checkpoints, whose runs still exist. `undone`: a redo
    has removed its instant from the timeline, or is about to. `replaced` are the file groups, by
    partition path, that a replacecommit removes from the table; `quarantined` the staged files of
    refused rows.
    """

    instant_time: str
    ordinal: int
    checkpoints: tuple[Checkpoint, ...]
    operation: str
    base: tuple[str, ...]
    statuses: tuple[WriteStatus, ...]
    replaces: str | None = None
    from_seals: bool = False
    undone: bool = False
    replaced: Mapping[str, Sequence[str]] = field(default_factory=dict)
    quarantined: tuple[StoredFile, ...] = ()
    merge_on_read: bool = False

    @property
    def pending(self) -> Instant:
        """Return its instant, inflight."""
        action = action_of(self.operation, merge_on_read=self.merge_on_read)
        return Instant(self.instant_time, action, State.INFLIGHT)

    @property
    def path(self) -> str:
        """Return the record's path, relative to the table's root."""
        return f"{FOLDER}/{self.instant_time}.{self.ordinal}.json"

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> "Prepared":
        """Return the record with these values, as `asdict` and JSON have them."""
        raw["checkpoints"] = tuple(Checkpoint(**c) for c in raw["checkpoints"])
        raw["base"] = tuple(raw["base"])
        raw["statuses"] = tuple(WriteStatus(**s) for s in raw["statuses"])
        raw["quarantined"] = tuple(StoredFile(**f) for f in raw["quarantined"])
        return cls(**raw)


@dataclass(slots=True)
class Writing:
    """One write: its plan, the reports of its writers, and its outcome.

    `replaced` are the file groups that a clustering has merged, by partition path.
    """

    plan: WritePlan
    statuses: Sequence[WriteStatus] = ()
    replaced: Mapping[str, Sequence[str]] = field(default_factory=dict)
    quarantined: Sequence[StoredFile] = ()
    result: Prepared | None = None
    instant: Instant | None = None


class PreparedRecords:
    """The prepared checkpoints of one table."""

    def __init__(self, storage: Storage, rules: KeptRules) -> None:
        self._storage = storage
        self._records = RecordFolder(storage, rules, FOLDER, _NAME.fullmatch, Prepared.parse)
        self.refresh = self._records.refresh

    def all(self) -> list[Prepared]:
        """Return the valid records, by instant and in the order of their checkpoints.

        Raises InvalidTable if a record before the last one of an instant is missing.
        """
        found = list(self._found())
        replaced = {record.replaces for record in found}
        kept = [record for record in found if record.instant_time not in replaced]
        kept.sort(key=lambda r: (r.instant_time, r.ordinal))
        for time17, records in itertools.groupby(kept, key=lambda r: r.instant_time):
            for expected, record in enumerate(records):
                if record.ordinal != expected:
                    path = f"{self._storage.root}/{FOLDER}/{time17}.{expected}.json"
                    raise InvalidTable(f"{path} is missing; {LOST}")
        return kept

    def instant_times(self) -> set[str]:
        """Return the times of the prepared instants."""
        return {record.instant_time for record in self.all()}

    def _found(self) -> Iterator[Prepared]:
        return map(self._records.read, self._records.paths())

    def put(self, record: Prepared) -> None:
        """Save a record durably; FileExistsError if there is one with that instant and ordinal."""
        staged = [path for s in record.statuses for path in (s.staged_path, s.deleted_path) if path]
        staged += [file.path for file in record.quarantined]
        for folder in sorted({str(PurePosixPath(path).parent) for path in staged}):
            self._storage.sync_folder(folder)  # make the names of the record's files durable
        self._storage.sync_folder(STAGED)
        self._records.put(record)

    def note_undone(self, record: Prepared) -> None:
        """Record that an instant is removed from the timeline without being completed."""
        self._records.put(replace(record, undone=True), new=False)

    def drop(self, record: Prepared) -> None:
        """Delete one record; those of the instant it replaced count again."""
        self._records.remove([record.path])

    def chain(self, instant_time: str) -> set[str]:
        """Return the instant and those that it has replaced, one after the other."""
        names = {instant_time}
        found = sorted(self._found(), key=lambda r: r.instant_time, reverse=True)
        for record in found:  # a replaced instant is older than the one that replaces it
            if record.instant_time in names and record.replaces:
                names.add(record.replaces)
        return names

    def remove(self, instant_time: str) -> None:
        """Delete all records of an instant, and those of the instants it replaced."""
        names = self.chain(instant_time)
        gone = [record for record in self._found() if record.instant_time in names]
        # one that is replaced must not outlive the other, nor a later ordinal an earlier one
        gone.sort(key=lambda r: (r.instant_time, -r.ordinal))
        self._records.remove([record.path for record in gone])


def archived(table: TableHandle, records: Sequence[Prepared]) -> Instant | None:
    """Return the instant if it was completed and another engine has archived it since, else None.

    Archiving takes the oldest commits first, except those of savepoints, so the other commits that
    the instant was built on are archived too. Raises InvalidTable if it cannot be decided whether
    it was archived or rolled back.
    """
    time17 = records[0].instant_time
    base = records[0].base
    listing = table.timeline.listing
    pending = any(i.requested_time == time17 for i in listing.pending)
    start = table.timeline.start(listing)
    kept = {known for known in listing.commit_times if known >= start}
    if pending or time17 > start or kept.intersection(base):
        return None
    if not base and not table.timeline.archived():
        return None
    if records[0].undone or was_rolled_back(table, time17) or table.timeline.archive.lacks(time17):
        return None
    paths = [status.path for status in merged(records)]
    if paths and not any(map(table.storage.entry, paths)):
        raise InvalidTable(
            f"instant {time17} is prepared, but the timeline of {table.storage.root} begins after "
            f"it and its files are gone: it was archived and cleaned, or rolled back; {LOST}"
        )
    return Instant(time17, records[0].pending.action, State.COMPLETED)


def checkpoints_of(records: Iterable[Prepared]) -> list[Checkpoint]:
    """Return the checkpoints of prepared records, in order."""
    return [checkpoint for record in records for checkpoint in record.checkpoints]


def merged(records: Iterable[Prepared]) -> list[WriteStatus]:
    """Return one status per base file: the group's last, with the counts of all checkpoints."""
    return one_per_file(status for record in records for status in record.statuses)


def one_per_file(statuses: Iterable[WriteStatus]) -> list[WriteStatus]:
    """Return the last status of each file group that has a file, with the counts of all."""
    last: dict[tuple[str, str], WriteStatus] = {}
    for status in (s for s in statuses if s.file_name):
        key = (status.partition_path, status.file_id)
        before = last.get(key)
        if before is not None:
            if not before.is_log:  # a base file: it is what this checkpoint has built on
                file = before.previous_file
                status = replace(status, previous_file=file, previous_commit=before.previous_commit)
            status = replace(
                status,
                inserts=before.inserts + status.inserts,
                updates=before.updates + status.updates,
                deletes=before.deletes + status.deletes,
            )
        last[key] = status
    return [last[key] for key in sorted(last)]


def verify(statuses: Iterable[WriteStatus], storage: Storage, stake: str = LOST) -> None:
    """Raise InvalidTable if a staged base file is missing or has changed.

    Of objects only the length is compared: their store has checked the signature of each request,
    which has a checksum of the content, and keeps its own checksums.
    """
    read = not is_remote(storage.root)
    files = [status.staged_file for status in statuses if status.staged_file is not None]
    with ThreadPoolExecutor(threads()) as pool:  # reading and CRC release the interpreter lock
        for _ in pool.map(lambda file: file.verify(storage, stake, content=read), files):
            pass


def refuse_moved(records: Sequence[Prepared], commits: tuple[str, ...]) -> None:
    """Raise WriteFailed if the table has changed since an open instant's last checkpoint.

    Otherwise its checkpoints would be built on different versions of the table.
    """
    if records and records[-1].base != commits:
        raise WriteFailed(
            f"another writer changed the table while instant {records[0].instant_time} was open: "
            "the checkpoint is rolled back and runs again"
        )


def refuse_conflicts(statuses: Iterable[WriteStatus]) -> None:
    """Raise WriteFailed if two tasks of one checkpoint wrote one file group."""
    names: dict[tuple[str, str], str] = {}
    for status in statuses:
        other = names.setdefault((status.partition_path, status.file_id), status.file_name)
        if other != status.file_name:
            raise WriteFailed(
                f"two tasks wrote one file group ({other} and {status.file_name}) and one file "
                "would be lost: shuffle the input by partition path (step1) or file id"
            )


def refuse_other_instants(statuses: Iterable[WriteStatus], instant_time: str, nonce: str) -> None:
    """Raise WriteFailed for a file that was not written by this run for this instant.

    Readers go by the instant in a file's name: such a file would be missing, or visible later.
    """
    staged = f"{staged_folder(instant_time, nonce)}/"
    for status in statuses:
        name = data_file_name(status.file_name)
        paths = filter(None, (status.staged_path, status.deleted_path))
        if (name and name.instant_time != instant_time) or not all(
            path.startswith(staged) for path in paths
        ):
            raise WriteFailed(
                f"{status.staged_path or status.deleted_path} was written for an instant "
                f"other than {instant_time or 'that of this write'}: two attempts of a task each "
                "created an instant; the batch is rolled back and runs again"
            )


def quarantined(records: Iterable[Prepared]) -> tuple[StoredFile, ...]:
    """Return the staged files of the rows that checkpoints refused, in order."""
    return tuple(file for record in records for file in record.quarantined)
