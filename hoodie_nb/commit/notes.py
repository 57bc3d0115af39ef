"""Notes: what every commit of ours carries beside its files.

*On disk*, in the commit's `extraMetadata`: the schema; `_hoodie_nb_progress`, the newest checkpoint
of every query; `_hoodie_nb_last_arrival`, the number of the last sealed checkpoint that is applied.

*Semantics*: the newest commit of ours that is on the timeline counts, whatever other engines have
committed since. A restore of the table takes its notes back too.

*Source:* design §4.4, Hudi's `_hudi_streaming_sink_checkpoint`.
"""

import json
from collections.abc import Sequence

from hoodie_nb.commit.prepared import Prepared, PreparedRecords, checkpoints_of
from hoodie_nb.commit.progress import EXTRA_KEY, Checkpoint, ProgressRecords, held_by
from hoodie_nb.commit.sealing import MARK_KEY, SealedRecords
from hoodie_nb.table.avro_schema import to_avro
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.writer.intake import Intake


class CommitNotes:
    """The notes of one table's commits, and the records that they keep up to date."""

    def __init__(
        self, table: TableHandle, progress: ProgressRecords, sealed: SealedRecords
    ) -> None:
        self._table, self._progress, self._sealed = table, progress, sealed
        self._foreign: set[str] = set()  # commits that are known to be another engine's

    def _newest(self) -> dict[str, str]:
        """Return the notes of the newest commit of ours, none if there is no such commit."""
        for instant in reversed(self._table.timeline.completed_commits()):
            if instant.requested_time not in self._foreign:
                extra = self._table.commit_metadata(instant).extra
                if EXTRA_KEY in extra:
                    return dict(extra)
                self._foreign.add(instant.requested_time)
        return {}

    def catch_up(self) -> None:
        """Take over what the newest commit of ours says: progress, and which seals are applied."""
        self._progress.catch_up(self.take_mark())

    def take_mark(self) -> dict[str, str]:
        """Let the sealed records know which of them are applied; return the newest notes."""
        notes = self._newest()
        if notes:
            self._sealed.take_mark(notes, self._table.storage.root)
        return notes

    def drop_applied(self, prepared: PreparedRecords) -> None:
        """Remove prepared records that came back from a backup, long after they were applied."""
        for record in prepared.all():
            time17 = record.instant_time
            if self._table.timeline.completed(time17) is None and self._is_applied(record):
                prepared.remove(time17)

    def _is_applied(self, record: Prepared) -> bool:
        """Whether a later commit holds checkpoints of a prepared record's query.

        Before a query commits anything else, its prepared instant is committed, if need be under
        another time: then the record is one that a backup brought back.
        """
        queries = {checkpoint.query_id for checkpoint in record.checkpoints}
        later = (
            commit.requested_time
            for commit in self._table.timeline.completed_commits()
            if commit.requested_time > record.instant_time
        )
        return any(queries & self._held_by(time17).keys() for time17 in later)

    def ends_with(self, time17: str, records: Sequence[Prepared]) -> bool:
        """Whether the last of these records is the last one of a completed instant."""
        last = checkpoints_of(records)[-1:]
        return all(self._held_by(time17).get(c.query_id) == c for c in last)

    def _held_by(self, time17: str) -> dict[str, Checkpoint]:
        """Return the last checkpoint of each query of which a commit holds any."""
        done = self._table.timeline.completed(time17)
        extra = {} if done is None else self._table.commit_metadata(done).extra
        return held_by(extra, time17)

    def of(self, records: Sequence[Prepared], intake: Intake) -> dict[str, str]:
        """Return the notes of the commit that these prepared records become."""
        time17 = records[0].instant_time
        self.take_mark()
        schema = to_avro(intake.schema, intake.config.name)
        sealed = checkpoints_of(record for record in records if record.from_seals)
        return {
            "schema": json.dumps(schema, separators=(",", ":")),
            EXTRA_KEY: self._progress.carried(checkpoints_of(records), time17),
            MARK_KEY: self._sealed.mark_with(sealed),
        }
