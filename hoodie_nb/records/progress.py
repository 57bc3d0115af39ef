"""Committed checkpoints by query; refuses gaps, repeated inserts, a stream of another table.

*On disk*: `.hoodie/.hoodie_nb/progress/<query id>.json`, replaced atomically: the newest hundred
checkpoints of a query, and always one with rows, with the fingerprint of their data and their
instant (null if they had no rows; `undone by R` if restore R undid it), and the columns with which
the query started. Every commit also has the newest entry of all queries, or the last one before a
batch that is undone, so that after a crash between the completed file and this record the next
start can restore it.

*Semantics*: identity = (query id, batch id, SHA-256 of the bytes of Spark's `offsets/N`), since a
restored checkpoint folder may run other data under the same number.

- same identity again → the batch is skipped;
- batch N without a record of N-1 → table and checkpoint folder do not belong together (one of them
  was restored): an error, never a silent gap;
- batch N was undone → what the stream wrote after N-1 must come again: it is refused until its
  folder is taken back. Then Spark writes a new `offsets/N`, with another fingerprint: so an undone
  entry is replaced by what is durable *under its number*, sealed or prepared (`check_position`), or
  recorded, also as empty (`record`). Undone numbers that were not written again still refuse a
  stream that continues after them (docs/protocols.md has all cases);
- an insert never repeats a number that has rows in the table, whatever its fingerprint.

*Source:* Delta's (txnAppId, txnVersion), Hudi's `_hudi_streaming_sink_checkpoint`.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NoReturn

from hoodie_nb.clock import Clock
from hoodie_nb.definition.rules import KeptRules
from hoodie_nb.display import counted
from hoodie_nb.errors import InvalidConfig, InvalidTable, readable
from hoodie_nb.intake.bad_rows import Quarantine
from hoodie_nb.intake.intake import Intake
from hoodie_nb.storage.storage import OURS, Storage, read_bytes
from hoodie_nb.timeline.timeline import CommitsInTable

FOLDER = f"{OURS}/progress"
EXTRA_KEY = "_hoodie_nb_progress"
UNDONE = "undone by "
_KEPT = 100
_QUERY = re.compile(r"[\w-]+")
_FIX = (
    "it lists a stream's checkpoints that are in the table. Restore it from a backup, or delete "
    "it: the newest commit names the last checkpoint with rows, and a stream that continues from a "
    "later one is refused, not repeated"
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The identity of one checkpoint of one query."""

    query_id: str
    batch_id: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint in the table; `instant_time` is None if it had no rows."""

    batch_id: int
    fingerprint: str
    instant_time: str | None

    def checkpoint(self, query_id: str) -> Checkpoint:
        """Return the checkpoint's identity."""
        return Checkpoint(query_id, self.batch_id, self.fingerprint)

    def is_in(self, commits: CommitsInTable) -> bool:
        """Whether the instant, if there is one, is among the commits.

        If the archive cannot say it, the entry itself does: it was recorded after the commit.
        """
        return self.instant_time is None or self.instant_time in commits


def quarantine_of(
    intake: Intake, staged: str, clock: Clock, checkpoint: Checkpoint | None
) -> Quarantine | None:
    """Return where a write stages the rows that it refuses; None if they make it fail."""
    if not intake.quarantines:
        return None
    if checkpoint is None:
        return Quarantine(staged, clock.now_ms())
    return Quarantine(staged, clock.now_ms(), checkpoint.query_id, checkpoint.batch_id)


class ProgressRecords:
    """The progress records of one table."""

    def __init__(self, storage: Storage, rules: KeptRules | None = None) -> None:
        self._storage = storage
        self._rules = rules or KeptRules(storage)

    def _read(self, query_id: str) -> dict[str, Any]:
        path = _path(query_id)
        found = self._storage.entry(path)
        if found is None:
            return {"query": query_id, "checkpoints": [], "columns": None}
        content = b"" if found.is_folder else read_bytes(self._storage, path)
        raw = self._rules.decode(content, path, _FIX)
        if raw["query"] != query_id:
            raise InvalidTable(f"{path} is the record of query {raw['query']}; {_FIX}")
        return raw

    def _write(self, raw: Mapping[str, Any]) -> None:
        self._storage.put(_path(raw["query"]), self._rules.encode(raw))

    def entries(self, query_id: str) -> list[Entry]:
        """Return the recorded checkpoints of a query, oldest first."""
        return [Entry(int(b), str(f), i) for b, f, i in self._read(query_id)["checkpoints"]]

    def columns(self, query_id: str) -> list[str] | None:
        """Return the columns with which a query started; None if not recorded."""
        return self._read(query_id).get("columns")

    def note_columns(self, query_id: str, names: Iterable[str]) -> None:
        """Record the columns with which a query starts; an existing record is not changed."""
        raw = self._read(query_id)
        if raw.get("columns") is None:
            self._write({**raw, "columns": [*names]})

    def record(self, checkpoints: Iterable[Checkpoint], instant_time: str | None) -> None:
        """Record durably that these checkpoints are in the table, in this order.

        Of entries with one number the last counts: so they replace what was undone.
        """
        by_query: dict[str, list[Checkpoint]] = {}
        for checkpoint in checkpoints:
            by_query.setdefault(checkpoint.query_id, []).append(checkpoint)
        for query_id, new in by_query.items():
            raw = self._read(query_id)
            known = {(c.batch_id, c.fingerprint) for c in new}
            rows = [row for row in raw["checkpoints"] if (row[0], row[1]) not in known]
            rows += [[c.batch_id, c.fingerprint, instant_time] for c in new]
            with_rows = [row for row in rows[:-_KEPT] if row[2] is not None]
            self._write({**raw, "checkpoints": [*with_rows[-1:], *rows[-_KEPT:]]})

    def note_undone(self, undone: Mapping[str, str]) -> None:
        """Mark the checkpoints of commits that a restore undid, given by commit.

        They are not in the table, also when commits of their time have been archived. A stream that
        continues from an empty one after them would not repeat them: so it is marked, too.
        """
        marks = {instant: f"{UNDONE}{restore}" for instant, restore in undone.items()}
        for query_id in self._queries():
            raw = self._read(query_id)
            rows = _marked(raw["checkpoints"], marks)
            if rows != raw["checkpoints"]:
                self._write({**raw, "checkpoints": rows})

    def forget_undone(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Forget that a restore undid exactly these checkpoints: they are durable again.

        Else the loss of their new seals would not be noticed: what is recorded has been applied.
        """
        again = {(c.query_id, c.batch_id, c.fingerprint) for c in checkpoints}
        for query_id in {query_id for query_id, _, _ in again}:
            raw = self._read(query_id)
            kept = [
                [batch, mark, i]
                for batch, mark, i in raw["checkpoints"]
                if (query_id, batch, mark) not in again or not str(i).startswith(UNDONE)
            ]
            if kept != raw["checkpoints"]:
                self._write({**raw, "checkpoints": kept})

    def _queries(self) -> list[str]:
        """Return the ids of the queries that have a record."""
        names = (name.rpartition(".") for name in self._storage.file_names(FOLDER))
        return [query for query, _, kind in names if kind == "json" and _QUERY.fullmatch(query)]

    def find(self, checkpoint: Checkpoint) -> Entry | None:
        """Return the entry of exactly this checkpoint; None if it is not in the table."""
        entries = self.entries(checkpoint.query_id)
        return next((e for e in entries if e.checkpoint(checkpoint.query_id) == checkpoint), None)

    def carried(self, checkpoints: Iterable[Checkpoint], instant_time: str) -> str:
        """Return the text for a commit: the newest entry of every query, including these.

        An entry stands for all before it: so it is one before the first batch that is undone.
        """
        newest: dict[str, list[object]] = {}
        for query_id in self._queries():
            entries = self.entries(query_id)
            times = {e.batch_id: e.instant_time or "" for e in entries}  # of repeated ones
            undone = [batch_id for batch_id, time in times.items() if time.startswith(UNDONE)]
            held = [e for e in entries if not undone or e.batch_id < min(undone)]
            for last in held[-1:]:
                newest[query_id] = [*astuple(last)]
        newest |= {c.query_id: [c.batch_id, c.fingerprint, instant_time] for c in checkpoints}
        return json.dumps(newest)

    def catch_up(self, extra: Mapping[str, str]) -> None:
        """Record the progress in the newest commit, in case a crash left it unrecorded."""
        text = extra.get(EXTRA_KEY, "")
        what = f"the newest commit of {self._storage.root} carries {EXTRA_KEY}={text:.80}, which"
        with readable(what, "restore the commit from a backup"):
            newest = _carried_by(extra)
        for checkpoint, instant in newest:
            if self.find(checkpoint) is None:
                self.record([checkpoint], instant)

    def contains(self, checkpoint: Checkpoint, commits: CommitsInTable) -> bool:
        """Whether a checkpoint is recorded, and its instant, if it had one, is among `commits`."""
        entry = self.find(checkpoint)
        return entry is not None and entry.is_in(commits)

    def check_position(
        self,
        last: Checkpoint,
        commits: CommitsInTable,
        *,
        durable: Collection[Checkpoint] = (),
    ) -> None:
        """Raise InvalidTable if checkpoint `last`, or a recorded earlier one, is not in the table.

        `durable` are prepared or sealed: they count as in the table, and replace what is recorded
        under their numbers.
        """
        newest = {e.batch_id: e for e in self.entries(last.query_id)}  # of repeated ones
        again = {(c.batch_id, c.fingerprint) for c in durable if c.query_id == last.query_id}

        def is_lost(e: Entry) -> bool:
            replaced = any(n == e.batch_id and mark != e.fingerprint for n, mark in again)
            return not replaced and not e.is_in(commits)

        recorded = max((n for n in newest if n <= last.batch_id), default=-1)  # with all before it
        numbers = {*newest, *(n for n, _ in again)}
        gap = (n for n in range(recorded + 1, last.batch_id) if n not in numbers)
        missing = [*itertools.islice(gap, 1), *(n for n, e in newest.items() if is_lost(e))]
        if not (last in durable or self.contains(last, commits)):
            missing.append(last.batch_id)
        first = min(missing, default=last.batch_id + 1)
        if first <= last.batch_id:
            if not durable and self._storage.entry(_path(last.query_id)) is None:
                self._refuse_stranger(last, len(commits.listed))
            raise InvalidTable(
                f"batch {last.batch_id} of query {last.query_id} is not in the table, but the "
                f"checkpoint folder continues with batch {last.batch_id + 1}: one of them was "
                "restored or replaced, or a record in .hoodie/.hoodie_nb is lost. Restore the "
                f"other to the same moment{_rewound(n for n in numbers if n < first)}, or start "
                "the stream with a new checkpoint folder (repeated upserts converge)"
            )

    def _refuse_stranger(self, last: Checkpoint, count: int) -> NoReturn:
        """Raise InvalidTable for a query that has no record in the table, but has run batches.

        Tables do not know one another: of another one only a folder beside this one is found.
        """
        others = sorted(Path(self._storage.root).parent.glob(f"*/{_path(last.query_id)}"))
        whose = others[0].parents[3] if others else "another table"
        raise InvalidTable(
            f"the table {self._storage.root}, which has {counted(count, 'commit')}, has no "
            f"record of query {last.query_id}, but the checkpoint folder continues with batch "
            f"{last.batch_id + 1}: the folder is that of a stream into {whose}, or of Hudi's own "
            "stream, or this table was deleted or replaced (if_exists='replace') after the stream "
            "had begun. Start the stream with a new checkpoint folder, one for each table: it "
            "reads its source from the start, and repeated upserts converge (also if "
            f"{_path(last.query_id)} was lost)"
        )

    def check_insert(
        self,
        checkpoint: Checkpoint,
        commits: CommitsInTable,
        *,
        durable: Collection[Checkpoint] = (),
    ) -> None:
        """Raise InvalidConfig if an insert could repeat rows of a batch with other data.

        `durable` are as in `check_position`; empty batches repeat no row.
        """
        query_id = checkpoint.query_id
        number = checkpoint.batch_id
        later = [e for e in self.entries(query_id) if e.batch_id >= number and e.instant_time]
        waits = any(c.query_id == query_id and c.batch_id >= number for c in durable)
        if waits or any(e.is_in(commits) for e in later):
            raise InvalidConfig(
                f"batch {number} of query {query_id} was already written with other data; a second "
                "insert could duplicate rows: use operation='upsert', undo its commit and all "
                "later ones (Table.restore), or use a new checkpoint folder if the source starts "
                "at new data"
            )


def held_by(extra: Mapping[str, str], time17: str) -> dict[str, Checkpoint]:
    """Return by query the last checkpoint in the commit of that time."""
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
        return {c.query_id: c for c, instant in _carried_by(extra) if instant == time17}
    return {}


def _carried_by(extra: Mapping[str, str]) -> list[tuple[Checkpoint, str | None]]:
    carried = json.loads(extra.get(EXTRA_KEY, "{}"))
    return [
        (Checkpoint(query_id, int(batch), str(fingerprint)), instant and str(instant))
        for query_id, (batch, fingerprint, instant) in carried.items()
    ]


def _path(query_id: str) -> str:
    if not _QUERY.fullmatch(query_id):
        raise InvalidConfig(f"query id {query_id!r} has characters other than letters, digits, - _")
    return f"{FOLDER}/{query_id}.json"


def _marked(rows: Iterable[Sequence[Any]], marks: Mapping[str, str]) -> list[list[Any]]:
    """Return entries with the marks of undone instants; so have empty batches after them."""
    found = list[list[Any]]()
    first = None
    latest = None
    for number, mark, instant in rows:
        if instant in marks:
            first = number if first is None else min(first, number)
            latest = marks[instant]
            instant = latest
        elif instant is None and first is not None and number > first:
            instant = latest
        found.append([number, mark, instant])
    return found


def _rewound(held: Iterable[int]) -> str:
    """Return how to take the checkpoint folder back to the last of the batches in the table."""
    last = max(held, default=None)
    if last is None:
        return ""
    return (
        " (in the checkpoint folder: delete the files in `offsets` and `commits` whose number is "
        f"above {last}, the last batch in the table)"
    )
