"""Which version of a row counts: random batches against a dict, for any flushes."""

from __future__ import annotations

import datetime as dt
import gc
import itertools
import math
import weakref
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from core.writes import write_and_commit
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import Model, hudi_rows, rank, schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.buckets.assigner import FileIdAssigner
from hoodie_nb.buckets.buffer import Bucket, WriteBuffer
from hoodie_nb.buckets.merge import Merge
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.index.bloom import BloomIndex
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.local.in_process import keyed_in_order
from hoodie_nb.local.operators import write as write_buckets
from hoodie_nb.records.sealing import Interval
from hoodie_nb.rows.columns import SEQ
from hoodie_nb.rows.folding import fold_runs, merge_runs
from hoodie_nb.rows.merge_rule import WholeRow
from hoodie_nb.rows.taking import sort_rows
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

MOMENT = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC)
ORDERINGS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [None, -(2**63), -1, 0, 1, 2**63 - 1]),
    "float64": (pa.float64(), [None, math.nan, -math.inf, -1.5, -0.0, 0.0, 1e308, math.inf]),
    "float32": (pa.float32(), [None, math.nan, -0.0, 0.0, 0.5]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [None, MOMENT, MOMENT + dt.timedelta(microseconds=1), MOMENT + dt.timedelta(days=9)],
    ),
    "date": (pa.date32(), [None, dt.date(1960, 1, 2), dt.date(2026, 1, 1)]),
    "string": (pa.string(), [None, "", "10", "9", "é", "\U0001f600", "\uffff"]),
    "decimal": (pa.decimal128(7, 2), [None, Decimal("-0.01"), Decimal("0.00"), Decimal("9.50")]),
    "boolean": (pa.bool_(), [None, False, True]),
}
TINY = {"write.batch.size": "1 KB", "write.task.max.size": "4 KB"}
SPLIT = {
    **TINY,
    "hoodie.parquet.max.file.size": "4 KB",
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.copyonwrite.record.size.estimate": 1024,  # four rows in a file
}

Batch = tuple[str, list[dict[str, Any]]]


@st.composite
def batches(draw: st.DrawFn, kind: str) -> list[Batch]:
    """One to four batches of upserts and deletes over few keys, partitions and ordering values."""
    values = ORDERINGS[kind][1]
    serial = iter(range(10_000))
    found: list[Batch] = []
    for _ in range(draw(st.integers(1, 4))):
        operation = draw(st.sampled_from(["upsert", "upsert", "delete", "delete by key"]))
        rows = draw(
            st.lists(
                st.tuples(
                    st.sampled_from("abcdef"),
                    st.sampled_from(["x", "y"]),
                    st.sampled_from(values),
                    st.sampled_from([False, False, None, True]),
                ),
                min_size=1,
                max_size=12,
            )
        )
        found.append((operation, [_row(operation, row, next(serial)) for row in rows]))
    return found


def _row(operation: str, drawn: tuple[str, str, Any, bool | None], value: int) -> dict[str, Any]:
    key, partition, ordering, deleted = drawn
    row: dict[str, Any] = {"id": key, "p": partition}
    if operation != "delete by key":
        row["ts"] = ordering
    if operation == "upsert":
        row |= {"v": value, "_hoodie_is_deleted": deleted}
    return row


def arrow(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows as an Arrow table with the columns the first row has."""
    kinds = {**{f.name: f.type for f in schema}, "_hoodie_is_deleted": pa.bool_()}
    return pa.Table.from_pylist(rows, schema=pa.schema([(n, kinds[n]) for n in rows[0]]))


def apply(table: Table, operation: str, rows: pa.Table) -> None:
    """Run one batch through the public API."""
    (table.upsert if operation == "upsert" else table.delete)(rows)


def make(root: Path, schema: pa.Schema, **more: Any) -> Table:
    """Create an empty table, by default with an ordering column."""
    more = {"ordering": "ts", **more}
    return Table.create(root, schema=schema, record_key="id", partition_by="p", **more)


@pytest.mark.parametrize("kind", ORDERINGS)
def test_batches_equal_a_dict_model(kind: str, new_folder: Callable[[], Path]) -> None:
    """Any batches give the dict's rows, flushed often or never, in one file group or in many."""
    schema = schema_of(ORDERINGS[kind][0])

    @settings(max_examples=20, deadline=None, database=None)
    @given(batches(kind))
    def check(history: list[Batch]) -> None:
        folder = new_folder()
        tables = [
            make(Path(folder, f"t{i}"), schema, options=options)
            for i, options in enumerate([{}, SPLIT])
        ]
        model = Model()
        for operation, rows in history:
            data = arrow(rows, schema)
            for table in tables:
                apply(table, operation, data)
            getattr(model, operation.split()[0])(data.to_pylist())
            for table in tables:
                assert without_meta(table.to_arrow()) == model.snapshot()
        assert hudi_rows(tables[0].path) == model.snapshot()
        assert [str(f) for table in tables for f in fsck(table.path)] == []

    check()


NAN_ORDERS = [[[math.nan], [1.0]], [[math.nan, 1.0]], [[1.0], [math.nan]], [[1.0, math.nan]]]


@pytest.mark.parametrize("interval", [None, 9])
@pytest.mark.parametrize("history", NAN_ORDERS, ids=str)
def test_a_nan_loses_against_any_number(
    tmp_path: Path, history: list[list[float]], interval: int | None
) -> None:
    """NaN has no order: like null it loses, in one batch, in the table, and when sealed."""
    schema = schema_of(pa.float64())
    table = make(tmp_path / "t", schema)
    job = LocalJob(open_table(table.path), interval=interval and Interval(checkpoints=interval))
    for checkpoint, values in enumerate(history, 1):
        rows = [{"id": "k", "p": "x", "ts": ts, "v": 0 if math.isnan(ts) else 1} for ts in values]
        job.write(arrow(rows, schema))
        job.checkpoint(checkpoint)
        job.complete(checkpoint)
    job.checkpointing.complete()
    assert table.to_arrow(["v"]).column(0).to_pylist() == [1]


@pytest.mark.parametrize("interval", [None, 9])
def test_among_nan_and_null_the_newer_arrival_wins(tmp_path: Path, interval: int | None) -> None:
    """NaN and null are equal in order, and minus infinity is greater than both."""
    schema = schema_of(pa.float64())
    history = [math.nan, None, math.nan, None, -math.inf, math.nan]
    for count in range(1, len(history) + 1):
        table = make(tmp_path / str(count), schema)
        job = LocalJob(open_table(table.path), interval=interval and Interval(checkpoints=interval))
        for v, ts in enumerate(history[:count]):
            job.write(arrow([{"id": "k", "p": "x", "ts": ts, "v": v}], schema))
            job.checkpoint(v + 1)
            job.complete(v + 1)
        job.checkpointing.complete()
        assert table.to_arrow(["v"]).column(0).to_pylist() == [min(count - 1, 4)]


def test_commit_time_lets_the_newer_arrival_win(new_folder: Callable[[], Path]) -> None:
    """Without an ordering column, and with merge_mode='commit_time', the last row of a key wins."""
    schema = schema_of()

    @settings(max_examples=15, deadline=None, database=None)
    @given(batches("int64"), st.booleans())
    def check(history: list[Batch], named: bool) -> None:
        folder = new_folder()
        ordering = "ts" if named else None
        table = make(Path(folder, "t"), schema, ordering=ordering, merge_mode="commit_time")
        model = Model(ordering=None)
        for operation, rows in history:
            apply(table, operation, arrow(rows, schema))
            getattr(model, operation.split()[0])(rows)
            assert without_meta(table.to_arrow()) == model.snapshot()

    check()


def test_insert_adds_every_row_and_upsert_then_updates_them(tmp_path: Path) -> None:
    """`insert` keeps equal keys of one or two batches as separate rows; upsert finds them all."""
    table = make(tmp_path / "t", schema_of())
    row = {"id": "k", "p": "x", "ts": 1, "v": 1}
    table.insert(arrow([row, {**row, "v": 2}], schema_of()))
    table.insert(arrow([{**row, "v": 3}], schema_of()))
    found = sorted(table.to_arrow(["v"]).column(0).to_pylist())
    assert found == [1, 2, 3]
    table.upsert(arrow([{**row, "v": 4}], schema_of()))
    assert table.to_arrow(["v"]).column(0).to_pylist() == [4, 4, 4]


# --- where buffers are flushed ----------------------------------------------------------------

_KEYED = st.lists(  # (key, ordering value, 2 for a delete)
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([None, 0, 1, 2]), st.integers(0, 2)),
    min_size=4,
    max_size=60,
)


def _keyed(rows: list[tuple[str, int | None, int]], config_of: Path) -> tuple[Intake, pa.Table]:
    table = open_table(config_of)
    intake = Intake(table.config, table.schema)
    data = [
        {"id": k, "p": "x", "ts": ts, "v": i, "_hoodie_is_deleted": gone == 2}
        for i, (k, ts, gone) in enumerate(rows)
    ]
    return intake, keyed_in_order(arrow(data, table.schema), intake)


@pytest.fixture(scope="module")
def empty(new_folder: Callable[[], Path]) -> Path:
    """An empty table, for its configuration."""
    return Path(make(new_folder() / "t", schema_of()).path)


def test_folding_sorted_runs_equals_folding_all(empty: Path) -> None:
    """For any division into runs and pieces, `fold_runs` gives the fold of all rows."""

    @settings(max_examples=150, deadline=None, database=None)
    @given(_KEYED, st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 7))
    def check(rows: list[Any], random: Any, runs: int, piece: int) -> None:
        _, keyed = _keyed(rows, empty)
        run_of = np.array([random.randrange(runs) for _ in range(keyed.num_rows)])
        parts = [WholeRow("ts").fold(keyed.filter(pa.array(run_of == r))) for r in range(runs)]
        cut = [
            iter([part.slice(i, piece) for i in range(0, part.num_rows, piece)]) for part in parts
        ]
        found = pa.concat_tables([keyed.slice(0, 0), *fold_runs(cut, WholeRow("ts"))])
        assert found.to_pylist() == WholeRow("ts").fold(keyed).to_pylist()
        assert found.column(RECORD_KEY).to_pylist() == sorted({k for k, _, _ in rows})

    check()


def test_merged_runs_keep_the_rows_of_a_key_together(empty: Path) -> None:
    """Wherever the pieces of a run end, all rows of a key are in one piece of the result."""
    _, keyed = _keyed([(key, 1, n) for n, key in enumerate("aabbbbbccdeeeee" * 3)], empty)
    both = (PARTITION_PATH, RECORD_KEY)
    runs = [sort_rows(keyed.slice(n, 15), both) for n in (0, 15, 30)]
    for size in (1, 2, 3, 7):
        pieces = [(run.slice(n, size) for n in range(0, run.num_rows, size)) for run in runs]
        merged = [
            [*zip(*(table.column(name).to_pylist() for name in both), strict=True)]
            for table in merge_runs(pieces)
        ]
        assert len([*itertools.chain(*merged)]) == keyed.num_rows
        assert not any(set(a) & set(b) for a, b in itertools.combinations(merged, 2))


def test_a_fold_keeps_the_greatest_ordering_value_then_the_newest_arrival(empty: Path) -> None:
    """Of each key the fold keeps the row that is greatest by (ordering, sequence), null lowest."""

    @settings(max_examples=100, deadline=None, database=None)
    @given(_KEYED)
    def check(rows: list[Any]) -> None:
        _, keyed = _keyed(rows, empty)
        best: dict[str, tuple[Any, ...]] = {}
        for number, (key, ts, _) in enumerate(rows):
            best[key] = max(best.get(key, ((-1,), -1)), (rank(ts), number))
        kept = {r[RECORD_KEY]: r[SEQ] for r in WholeRow("ts").fold(keyed).to_pylist()}
        assert kept == {key: number for key, (_, number) in best.items()}

    check()


def written_in_pieces(
    table: TableHandle, keyed: pa.Table, intake: Intake, cuts: list[pa.Table]
) -> EventLog:
    """Assign sorted rows, then pass them to a writer in other pieces and another order."""
    events = EventLog()

    def write(plan: WritePlan) -> list[WriteStatus]:
        assigner = FileIdAssigner(plan, BloomIndex(plan), 0, events.emit)
        assigned = pa.concat_tables(assigner.assign([keyed]))
        pieces = [assigned.take(cut.column(0)) for cut in cuts]
        return list(write_buckets(plan, pieces, TaskAttempt(), events.emit))

    coordinator = WriteCoordinator(table, events)
    coordinator.recover()
    write_and_commit(coordinator, intake, write, shape=Shape())
    return events


def interleaved(keys: list[str], random: Any) -> list[int]:
    """Return the positions in any order that keeps the rows of each key in order."""
    waiting = {key: [i for i, k in enumerate(keys) if k == key] for key in sorted(set(keys))}
    turns = list(keys)
    random.shuffle(turns)
    return [waiting[key].pop(0) for key in turns]


def test_the_result_does_not_depend_on_where_buffers_were_flushed(
    empty: Path, new_folder: Callable[[], Path]
) -> None:
    """Keys in any order and pieces, with flushes after any piece, give the same snapshot."""
    flushed: list[int] = []

    @settings(max_examples=30, deadline=None, database=None)
    @given(
        st.lists(_KEYED, min_size=1, max_size=3),
        st.randoms(use_true_random=False),
        st.integers(1, 20),
        st.sampled_from([(1, 1), (64, 256), (1 << 20, 1 << 20)]),
    )
    def check(history: list[Any], random: Any, piece: int, sizes: tuple[int, int]) -> None:
        options = {"write.batch.size": sizes[0], "write.task.max.size": sizes[1]}
        folder = new_folder()
        handle = open_table(make(Path(folder, "t"), schema_of(), options=options).path)
        model = Model()
        for rows in history:
            intake, keyed = _keyed(rows, empty)
            order = interleaved(keyed.column(RECORD_KEY).to_pylist(), random)
            cuts = [order[i : i + piece] for i in range(0, len(order), piece)]
            tables = [pa.table({"at": pa.array(cut, pa.int64())}) for cut in cuts]
            events = written_in_pieces(handle, keyed, intake, tables)
            flushed.append(len(events.records("buffer_flushed")))
            model.upsert(
                {"id": k, "p": "x", "ts": ts, "v": i, "_hoodie_is_deleted": gone == 2}
                for i, (k, ts, gone) in enumerate(rows)
            )
            found = Table.open(handle.storage.root).to_arrow()
            assert without_meta(found) == model.snapshot()

    check()
    assert max(flushed) > 3


def spill(bucket: Bucket, rows: pa.Table) -> bool:
    """Append nothing to new files: every flush is a spilled run."""
    return False


def _assigned(plan: WritePlan, keyed: pa.Table) -> pa.Table:
    assigner = FileIdAssigner(plan, BloomIndex(plan), 0, EventLog().emit)
    return pa.concat_tables(assigner.assign([keyed])).combine_chunks()


def _plan(root: Path, buckets: int, rows: int, **options: object) -> tuple[WritePlan, pa.Table]:
    table = open_table(root)
    table.options = table.options.updated(options)
    intake = Intake(table.config, table.schema)
    names = [f"{i:06d}" for i in range(rows)]
    data = {
        "id": names,
        "p": [f"p{i % buckets}" for i in range(rows)],
        "ts": list(range(rows)),
        "v": list(range(rows)),
    }
    coordinator = WriteCoordinator(table, EventLog())
    plan = coordinator.plan(coordinator.begin(), intake, Shape())
    return plan, _assigned(plan, keyed_in_order(pa.table(data, schema=schema_of()), intake))


@pytest.mark.parametrize("buckets", [1, 7, 40])
def test_buffered_bytes_stay_below_the_limit(tmp_path: Path, buckets: int) -> None:
    """For any input, the buffer peaks at most at the task's limit plus the newest piece."""
    make(tmp_path / "t", schema_of())
    sizes = {"write.batch.size": 8192, "write.task.max.size": 16384}
    plan, assigned = _plan(tmp_path / "t", buckets, 4000, **sizes)
    events = EventLog()
    buffer = WriteBuffer(plan, "task", events.emit, spill)
    largest = 0
    for start in range(0, assigned.num_rows, 100):
        piece = assigned.slice(start, 100).combine_chunks()
        buffer.add(piece)
        largest = max(largest, piece.nbytes)
        assert buffer.buffered_bytes <= 16384
    drained = list(buffer.drain())
    buffer.close()
    assert 8192 < buffer.peak_bytes <= 16384 + largest
    assert len(drained) == buckets
    assert len(events.records("buffer_flushed")) > 5


def test_a_bucket_that_waits_does_not_hold_the_memory_of_flushed_ones(tmp_path: Path) -> None:
    """Spilled rows are freed, even if other buckets' rows came in the same pieces."""
    make(tmp_path / "t", schema_of())
    sizes = {"write.batch.size": 65536, "write.task.max.size": 1 << 20}
    plan, assigned = _plan(tmp_path / "t", 1, 60_000, **sizes)
    rare = pa.concat_tables([assigned.slice(0, 1)])
    position = assigned.schema.get_field_index("_hoodie_nb_file_id")
    rare = rare.set_column(position, assigned.schema.field(position), [["rare"]])
    buffer = WriteBuffer(plan, "task", EventLog().emit, spill)
    before = pa.total_allocated_bytes()
    for start in range(0, assigned.num_rows, 2000):
        buffer.add(pa.concat_tables([assigned.slice(start, 2000), rare]).combine_chunks())
    held = pa.total_allocated_bytes() - before
    buffer.close()
    assert held < (1 << 20) + 2 * assigned.slice(0, 2000).combine_chunks().nbytes
    assert held < assigned.nbytes / 2


def test_a_new_file_keeps_its_keys_only(empty: Path) -> None:
    """Until it is closed, an open new file does not hold the other columns of its rows.

    Rows from Spark are one block of memory, of which every column is a part.
    """
    plan, keyed = _plan(empty, 1, 20_000)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keyed.schema) as writer:
        writer.write_table(keyed.combine_chunks())
    block = np.frombuffer(sink.getvalue(), np.uint8).copy()
    alive, incoming = weakref.ref(block), pa.ipc.open_stream(pa.py_buffer(block)).read_all()
    stored, rule = stored_schema(plan.intake.schema), plan.intake.rule
    merge = Merge(incoming, stored, rule, "1", "f", "1_0_", lambda count: 0)
    ((written, _),) = merge.pieces(iter(()))
    keys = written.column(RECORD_KEY)
    assert len(keys) == 20_000 and alive() is not None
    del merge, incoming, block, written
    gc.collect()
    assert alive() is None
