"""Rows that the tasks of `df.write` stage: sorted runs, verified, then written in one process.

*Work flow*: a task sorts its rows by partition, key and arrival, and saves them as durable runs,
each of half of `task_max_size`. The commit verifies the runs that Spark reports, of one attempt of
each task, and merges them: a piece of each of 32 runs is in memory at a time, so more runs become
fewer ones first, in local files. So lookups, buckets and files are those of a write in one process,
and it does not matter which task had which row.

*Fault tolerance*: the runs of failed or repeated attempts have other names; they are not reported,
and go with the folder.

**Caveats**: the rows are written twice, and one process beside the driver merges them into the
table: a large DataFrame is written faster by `table.upsert(df)`. With global keys the commit holds
all rows in memory. *Source:* RFC-24's flush and its merge, as in `bucket_writer`.
"""

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from hoodie_nb.buckets.plan import SealPlan, WritePlan
from hoodie_nb.errors import InvalidTable, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.local.in_process import write_in_process, write_pieces
from hoodie_nb.rows.columns import SEQ
from hoodie_nb.rows.runs import fitted, save_rows
from hoodie_nb.rows.sorting import in_order
from hoodie_nb.rows.spilling import merged, read_run, save_local_run
from hoodie_nb.storage.checksums import StoredFile
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

_PIECE_ROWS = 8_192  # the commit has a piece of each run in memory,
_AT_ONCE = 32  # of so many runs
_ORDER = (PARTITION_PATH, RECORD_KEY, SEQ)
_ANOTHER_WRITE = (
    "it belongs to a write that has not committed: another process has deleted it. Write the data "
    "again"
)


def stage_runs(
    plan: SealPlan, keyed: Iterable[pa.Table], token: str, limit_bytes: int
) -> list[StoredFile]:
    """Save the keyed rows of one task as sorted runs, each of about `limit_bytes` in memory."""
    runs = list[StoredFile]()
    held = list[pa.Table]()
    held_bytes = 0
    plan.storage.make_folder(plan.folder)

    def save() -> None:
        path = f"{plan.folder}/{token}.{len(runs)}.arrow"
        rows = in_order(pa.concat_tables(held))
        runs.append(save_rows(plan.storage, path, rows, piece_rows=_PIECE_ROWS))
        held.clear()

    for rows in keyed:
        held.append(rows)
        held_bytes += rows.nbytes
        if held_bytes >= limit_bytes:
            save()
            held_bytes = 0
    if held:
        save()
    return runs


def verify_runs(storage: Storage, runs: Sequence[StoredFile]) -> None:
    """Raise WriteFailed if a run is missing or damaged, before anything is written."""
    try:
        for run in runs:
            run.verify(storage, _ANOTHER_WRITE)
    except InvalidTable as error:
        raise WriteFailed(f"the batch was not applied: {error}") from error


def write_runs(runs: Sequence[StoredFile], plan: WritePlan, events: EventLog) -> list[WriteStatus]:
    """Assign and write the rows of verified runs; return the statuses."""
    if plan.intake.config.global_keys:
        rows = [plan.intake.keyed_schema.empty_table(), *_merged(runs, plan)]
        return write_in_process(pa.concat_tables(rows), plan, events)
    return write_pieces(_merged(runs, plan), plan, events)


def _merged(runs: Sequence[StoredFile], plan: WritePlan) -> Iterator[pa.Table]:
    """Yield the rows of all runs by partition, key and arrival, in the table's columns."""
    storage = plan.storage
    schema = plan.intake.keyed_schema
    paths = [storage.fetch(run.path) for run in runs]
    with tempfile.TemporaryDirectory(prefix="hoodie_nb_runs_") as folder:
        names = (Path(folder, f"{number}.arrow") for number in itertools.count())
        while len(paths) > _AT_ONCE:
            starts = range(0, len(paths), _AT_ONCE)
            paths = [_as_one(paths[at : at + _AT_ONCE], str(next(names))) for at in starts]
        for rows in merged([*map(read_run, paths)], _ORDER):
            yield rows if rows.schema == schema else fitted(rows, schema, storage.root)


def _as_one(paths: Iterable[str], path: str) -> str:
    """Merge some runs into one local run, and return its path."""
    save_local_run(merged([*map(read_run, paths)], _ORDER), path, _PIECE_ROWS)
    return path
