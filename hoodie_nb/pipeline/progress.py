"""Progress: which checkpoints of which streaming query the table holds already.

*On disk*: `.hoodie/.hoodie_nb/progress/<query id>.json`, replaced as a whole: the newest hundred
checkpoints of a query with the fingerprint of their data and the instant that holds them (null if
they had no rows). Every commit carries the newest entry of all queries too, so that a crash between
the completed file and this record is made good at the next start.

*Semantics*: identity = (query id, batch id, SHA-256 of the bytes of Spark's `offsets/N`), since a
restored checkpoint folder runs other data under the same number.

- same identity again → the batch is skipped;
- batch N without N-1 on record → table and checkpoint folder do not belong together (one of them
  was restored): an error, never a silent gap.

*Source:* Delta's (txnAppId, txnVersion), Hudi's `_hudi_streaming_sink_checkpoint`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.table.checksums import decode_record, encode_record
from hoodie_nb.table.storage import OURS, LocalStorage

FOLDER = f"{OURS}/progress"
EXTRA_KEY = "_hoodie_nb_progress"
_KEPT = 100
_CURE = (
    "it says which checkpoints of a stream the table holds. Restore it from a backup, or delete "
    "it: the newest commit names the last checkpoint with rows, and a stream that went on from a "
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
    """A checkpoint that the table holds; `instant_time` is None if it had no rows."""

    batch_id: int
    fingerprint: str
    instant_time: str | None


class ProgressRecords:
    """The progress records of one table."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage

    def entries(self, query_id: str) -> list[Entry]:
        """Return the kept checkpoints of a query, oldest first."""
        path = _path(query_id)
        if not self._storage.exists(path):
            return []
        raw = decode_record(self._storage.read_bytes(path), path, _CURE)
        if raw["query"] != query_id:
            raise InvalidTable(f"{path} is the record of query {raw['query']}; {_CURE}")
        return [Entry(int(b), str(f), i) for b, f, i in raw["checkpoints"]]

    def record(self, checkpoints: Iterable[Checkpoint], instant_time: str | None) -> None:
        """Note that the table holds checkpoints, in that order, durable."""
        by_query: dict[str, list[Checkpoint]] = {}
        for checkpoint in checkpoints:
            by_query.setdefault(checkpoint.query_id, []).append(checkpoint)
        for query_id, new in by_query.items():
            known = {(c.batch_id, c.fingerprint) for c in new}
            kept = [e for e in self.entries(query_id) if (e.batch_id, e.fingerprint) not in known]
            rows = [[e.batch_id, e.fingerprint, e.instant_time] for e in kept]
            rows += [[c.batch_id, c.fingerprint, instant_time] for c in new]
            content = {"query": query_id, "checkpoints": rows[-_KEPT:]}
            self._storage.replace(_path(query_id), encode_record(content))

    def find(self, checkpoint: Checkpoint) -> Entry | None:
        """Return the entry of exactly this checkpoint, None if the table does not hold it."""
        found = [e for e in self.entries(checkpoint.query_id) if _same(e, checkpoint)]
        return found[0] if found else None

    def carried(self, checkpoints: Iterable[Checkpoint], instant_time: str) -> str:
        """Return the text a commit carries: the newest entry of every query, these included."""
        newest: dict[str, list[object]] = {}
        for name in self._storage.names(FOLDER):
            query_id, _, kind = name.rpartition(".")
            kept = self.entries(query_id) if kind == "json" and _is_query_id(query_id) else []
            if kept:
                newest[query_id] = [kept[-1].batch_id, kept[-1].fingerprint, kept[-1].instant_time]
        for checkpoint in checkpoints:
            newest[checkpoint.query_id] = [
                checkpoint.batch_id,
                checkpoint.fingerprint,
                instant_time,
            ]
        return json.dumps(newest)

    def catch_up(self, extra: Mapping[str, str]) -> None:
        """Record what the newest commit carries and a crash kept from being recorded."""
        text = extra.get(EXTRA_KEY, "{}")
        try:
            newest = [
                (Checkpoint(query_id, int(batch), str(fingerprint)), instant and str(instant))
                for query_id, (batch, fingerprint, instant) in json.loads(text).items()
            ]
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidTable(
                f"the newest commit of {self._storage.root} carries {EXTRA_KEY}={text:.80}, which "
                f"cannot be read ({error}): restore the commit from a backup"
            ) from None
        for checkpoint, instant in newest:
            if self.find(checkpoint) is None:
                self.record([checkpoint], instant)

    def check_position(self, last: Checkpoint, known: Iterable[str]) -> None:
        """Raise InvalidTable if the table lacks checkpoint `last`; `known` are its instants."""
        entry, instants = self.find(last), list(known)
        lost = entry is not None and entry.instant_time is not None
        if entry is not None and lost:
            oldest = min(instants, default="")
            lost = not (entry.instant_time in instants or str(entry.instant_time) < oldest)
        if entry is None or lost:
            raise InvalidTable(
                f"the table does not hold batch {last.batch_id} of query {last.query_id}, but the "
                f"checkpoint folder goes on with batch {last.batch_id + 1}: one of them was "
                "restored or replaced, or a record in .hoodie/.hoodie_nb is lost. Restore the "
                "other to the same moment, or start the stream with a new checkpoint folder "
                "(upserts of data that comes again converge)"
            )

    def check_insert(self, checkpoint: Checkpoint) -> None:
        """Raise InvalidConfig if an insert could repeat a batch whose record is gone."""
        newest = max((e.batch_id for e in self.entries(checkpoint.query_id)), default=-1)
        if checkpoint.batch_id <= newest:
            raise InvalidConfig(
                f"batch {checkpoint.batch_id} of query {checkpoint.query_id} was written with "
                "other data before; inserting it again could double rows: use operation='upsert', "
                "or a new checkpoint folder if the source starts at new data"
            )


def _path(query_id: str) -> str:
    if not _is_query_id(query_id):
        raise InvalidConfig(f"query id {query_id!r} has characters other than letters, digits, - _")
    return f"{FOLDER}/{query_id}.json"


def _is_query_id(text: str) -> bool:
    return bool(text) and all(c.isalnum() or c in "-_" for c in text)


def _same(entry: Entry, checkpoint: Checkpoint) -> bool:
    return (entry.batch_id, entry.fingerprint) == (checkpoint.batch_id, checkpoint.fingerprint)
