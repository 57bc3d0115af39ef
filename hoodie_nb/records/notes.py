"""Extra metadata in each commit of this library: checkpoints it completes, seals it applied.

*On disk*, in the commit's `extraMetadata`: the schema; `_hoodie_nb_progress`, the newest checkpoint
of every query; `_hoodie_nb_last_arrival`, the number of the last applied sealed checkpoint;
`_hoodie_nb_quarantined`, how many rows were refused, if any.

*Semantics*: the newest of our commits on the timeline counts, even if other engines have committed
since. A restore of the table restores its notes too.

*Source:* Hudi's `_hudi_streaming_sink_checkpoint`.
"""

import json
from collections.abc import Sequence

from hoodie_nb.actions.publish import staged_of
from hoodie_nb.actions.quarantine import COUNT_KEY, count_rows
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.intake import Intake
from hoodie_nb.records.prepared import Prepared, PreparedRecords, checkpoints_of, quarantined
from hoodie_nb.records.progress import EXTRA_KEY, Checkpoint, ProgressRecords, held_by
from hoodie_nb.records.sealing import MARK_KEY, SealedRecords
from hoodie_nb.storage.storage import is_remote
from hoodie_nb.types.avro_schema import to_avro


class CommitNotes:
    """The notes of one table's commits, and the records that are updated from them."""

    def __init__(
        self, table: TableHandle, progress: ProgressRecords, sealed: SealedRecords
    ) -> None:
        self._table = table
        self._progress = progress
        self._sealed = sealed
        self._foreign: set[str] = set()  # commits known to be of another engine

    def _newest(self) -> dict[str, str]:
        """Return the notes of our newest commit; empty if there is no such commit."""
        for instant in reversed(self._table.timeline.completed_commits()):
            if instant.requested_time not in self._foreign:
                extra = self._table.commit_metadata(instant).extra
                if EXTRA_KEY in extra:
                    return dict(extra)
                self._foreign.add(instant.requested_time)
        return {}

    def catch_up(self) -> None:
        """Apply the notes of our newest commit: progress, and which seals are applied."""
        self._progress.catch_up(self.take_mark())

    def take_mark(self) -> dict[str, str]:
        """Update the sealed records with the last applied one; return the newest notes."""
        notes = self._newest()
        self._sealed.take_mark(notes, self._table.storage.root)
        return notes

    def drop_applied(self, prepared: PreparedRecords) -> None:
        """Remove prepared records that a backup restored after they were applied, or that are late.

        Nobody was told that a late one is durable: its writer had lost the lease.
        """
        for record in prepared.all():
            time17 = record.instant_time
            if self._table.timeline.completed(time17) is None:
                if self._is_applied(record):
                    prepared.remove(time17)
                elif self._is_late(record):
                    prepared.drop(record)

    def _is_late(self, record: Prepared) -> bool:
        """Whether a store received a record after its instant was rolled back, with its files."""
        table = self._table
        listing = table.timeline.listing
        time17 = record.instant_time
        if not is_remote(table.storage.root) or record.undone or record.from_seals:
            return False
        if any(i.requested_time == time17 for i in listing.pending):
            return False
        archived = time17 < min(listing.commit_times, default="") and table.timeline.archived()
        return not archived and not staged_of(table.storage, {time17})

    def _is_applied(self, record: Prepared) -> bool:
        """Whether a later commit has checkpoints of a prepared record's query.

        A query's prepared instant is committed before anything else of it, possibly under another
        time: so such a record was restored from a backup.
        """
        queries = {checkpoint.query_id for checkpoint in record.checkpoints}
        later = (
            commit.requested_time
            for commit in self._table.timeline.completed_commits()
            if commit.requested_time > record.instant_time
        )
        return any(queries & self._held_by(time17).keys() for time17 in later)

    def ends_with(self, time17: str, records: Sequence[Prepared]) -> bool:
        """Whether the last of these records is the last record of a completed instant."""
        return all(self._held_by(time17).get(c.query_id) == c for c in checkpoints_of(records)[-1:])

    def _held_by(self, time17: str) -> dict[str, Checkpoint]:
        """Return the last checkpoint of each query in a commit."""
        done = self._table.timeline.completed(time17)
        return held_by({} if done is None else self._table.commit_metadata(done).extra, time17)

    def of(self, records: Sequence[Prepared], intake: Intake) -> dict[str, str]:
        """Return the notes for the commit of these prepared records."""
        time17 = records[0].instant_time
        self.take_mark()
        schema = to_avro(intake.schema, intake.config.name)
        sealed = checkpoints_of(record for record in records if record.from_seals)
        refused = count_rows(self._table.storage, quarantined(records))
        return {
            **({COUNT_KEY: str(refused)} if refused else {}),
            "schema": json.dumps(schema, separators=(",", ":")),
            EXTRA_KEY: self._progress.carried(checkpoints_of(records), time17),
            MARK_KEY: self._sealed.mark_with(sealed),
        }
