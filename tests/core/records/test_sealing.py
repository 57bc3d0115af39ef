"""Sealed checkpoints give the same table as one commit per checkpoint."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenarios.tables import CONFIG, SCHEMA

from hoodie_nb.checks.fsck import fsck
from hoodie_nb.clock import ManualClock
from hoodie_nb.evidence.handle import create_table
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.sealing import Interval

ROW = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["p", "q"]),
    st.one_of(st.none(), st.integers(0, 6)),
    st.booleans(),
)
CHECKPOINTS = st.lists(st.lists(ROW, max_size=6), min_size=1, max_size=7)


def as_rows(batch, first):
    """Return a batch of random rows as an Arrow table; `v` distinguishes them."""
    columns = list(zip(*batch, strict=True)) or [(), (), (), ()]
    keys, parts, ts, deleted = (list(column) for column in columns)
    return pa.table(
        {
            "id": pa.array(keys, pa.string()),
            "part": pa.array(parts, pa.string()),
            "ts": pa.array(ts, pa.int64()),
            "v": pa.array(range(first, first + len(batch)), pa.int64()),
            "_hoodie_is_deleted": pa.array(deleted, pa.bool_()),
        }
    )


def final(folder, checkpoints, interval):
    """Run checkpoints through a job and return its table's rows and number of commits."""
    table = create_table(folder, CONFIG, clock=ManualClock())
    job = LocalJob(table, pipeline="step2", index="bloom", interval=interval)
    for number, batch in enumerate(checkpoints, start=1):
        if batch:
            job.write(as_rows(batch, number * 100))
        job.checkpoint(number)
        job.complete(number)
    job.checkpointing.complete()
    rows = sorted(to_arrow(table, SCHEMA.names).to_pylist(), key=lambda r: (r["part"], r["id"]))
    assert fsck(folder) == []
    return rows, len(table.timeline.completed_commits())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CHECKPOINTS)
def test_an_interval_ends_in_the_same_rows(tmp_path_factory, checkpoints):
    """Late rows, deletes, ties and nulls give the same table with and without an interval."""
    folder = tmp_path_factory.mktemp("sealing")
    each, _ = final(folder / "each", checkpoints, None)
    spanned, fewer = final(folder / "spanned", checkpoints, Interval(checkpoints=3))
    assert spanned == each
    assert fewer <= -(-len(checkpoints) // 3)  # deletes that match no row are committed empty


@pytest.mark.parametrize("insert_ts", [3, 5, 7])
def test_an_insert_after_a_delete_remains(tmp_path, insert_ts):
    """After a delete at 5 and an insert in the next checkpoint, the insert remains, for any ts."""
    history = [[("a", "p", 4, False)], [("a", "p", 5, True)], [("a", "p", insert_ts, False)]]
    rows, commits = final(tmp_path / "t", history, Interval(checkpoints=3))
    assert [(r["id"], r["ts"], r["v"]) for r in rows] == [("a", insert_ts, 300)]
    assert commits == 1
