"""Slices with logs that nobody writes to any more do not keep the timeline long."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from archives import MAX, MIN, archived
from each_fault import each_fault, opened, operation_of
from tables import Model, hudi_rows, pending_names, without_meta
from test_appending import SCHEMA, row
from test_appending import make as create

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit import compacting
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.types.schema import FILE_NAME

pytestmark = pytest.mark.usefixtures("many_logs")
FEW = {"hoodie.clean.commits.retained": 1, MIN: 3, MAX: 5}
IDLE = 4


def make(root: Path, version: int = 9, **options: object) -> Table:
    """Create a merge-on-read table that archives soon."""
    return create(root, options={**FEW, **options}, table_version=version)


def begin(table: Table, model: Model | None = None) -> None:
    """Write partitions with one log each, which nobody writes to any more, and one that goes on."""
    for ts in (0, 1):
        rows = [row(f"i{n}", ts, ts, f"idle{n}") for n in range(IDLE)] + [row("x", ts, ts, "b")]
        table.upsert(rows)
        if model is not None:
            model.upsert(rows)


def live(table: Table, first: int, last: int) -> None:
    """Write batches elsewhere."""
    for number in range(first, last):
        table.upsert([row("x", number, number, "b")])


def commits(root: Path | str) -> list[str]:
    """Return the times of the commits on the timeline."""
    return [i.requested_time for i in open_table(root).timeline.completed_commits()]


def idle_logs(root: Path | str) -> int:
    """Return how many logs the newest slices of idle partitions have."""
    groups = open_table(root).file_groups()
    return sum(len(piece.logs) for piece in groups if piece.partition_path.startswith("idle"))


def rows_of(root: Path | str) -> list[str]:
    """Return the rows as both readers see them."""
    found = without_meta(to_arrow(open_table(root)))
    assert hudi_rows(root) == found
    return found


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("reopened", [False, True])
def test_the_timeline_stays_short(tmp_path: Path, version: int, reopened: bool) -> None:
    """Sixty batches, of one process or of one each; partitions go idle; two readers, a dict."""
    table = make(tmp_path / "t", version)
    model, draw, found = Model(), random.Random(version), []
    begin(table, model)
    for number in range(2, 62):
        rows = [row("x", number, number, "b")]
        if number % 3 == 0 and number < 40:  # two slices with logs, and then never again
            part = f"p{number}"
            table.upsert(late := [row(part, number, 0, part)])
            model.upsert(late)
            rows.append(row(part, number + 1, draw.randrange(9), part))
        table = Table.open(table.path) if reopened else table
        table.upsert(rows)
        model.upsert(rows)
        assert rows_of(table.path) == model.snapshot()
        found.append(len(commits(table.path)))
    assert max(found) <= 24
    assert idle_logs(table.path) == 0
    assert len({*archived(table.path, "deltacommit")}) > 60
    assert pending_names(table.path) == [] and table.fsck() == []
    table.upsert(rows := [row(f"i{n}", 99, 99, f"idle{n}") for n in range(IDLE)])
    model.upsert(rows)
    assert rows_of(table.path) == model.snapshot()


def test_a_fold_is_no_change(tmp_path: Path) -> None:
    """It is a compaction: rows keep their commit times, and `changes` reports none."""
    table = make(tmp_path / "t")
    begin(table)
    since, number = commits(table.path)[-1], 2
    times = to_arrow(open_table(table.path), filters="p != 'b'").drop_columns([FILE_NAME])
    while not table.events.records("slices_compacted") and number < 20:
        live(table, number, number + 1)
        number += 1
    (event,) = table.events.records("slices_compacted")
    assert (event.values["slices"], event.values["logs"]) == (IDLE, IDLE)
    assert commits(table.path)[-1] == event.values["instant"]
    assert {*table.changes(since=since).to_pandas()["id"]} == {"x"}
    after = to_arrow(open_table(table.path), filters="p != 'b'").drop_columns([FILE_NAME])
    assert after.sort_by("id") == times.sort_by("id")


@pytest.mark.parametrize("bound", ["slices", "bytes"])
def test_a_commit_folds_a_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """The oldest first; the next commits go on with the others."""
    more = {}
    if bound == "slices":
        monkeypatch.setattr(compacting, "AT_ONCE", 1)
    else:
        more = {"hoodie.parquet.max.file.size": 1}
    table = make(tmp_path / "t", **more)
    begin(table)
    seen = []
    for number in range(2, 16):
        live(table, number, number + 1)
        seen.append(idle_logs(table.path))
    assert all(a - b in (0, 1) for a, b in pairwise(seen))
    first = seen.index(IDLE - 1)
    assert seen[first : first + IDLE] == [3, 2, 1, 0]


@pytest.mark.parametrize("off", ["hoodie.clean.automatic", "hoodie.archive.automatic"])
def test_only_with_automatic_services(tmp_path: Path, off: str) -> None:
    """Without both of them a fold would cure nothing."""
    table = make(tmp_path / "t", **{off: "false"})
    begin(table)
    live(table, 2, 20)
    assert idle_logs(table.path) == IDLE
    assert not table.events.records("slices_compacted")


def test_a_slice_that_is_written_to_is_left_to_its_writes(tmp_path: Path) -> None:
    """It is merged when it is due."""
    table = make(tmp_path / "t")
    begin(table)
    for number in range(2, 30):
        rows = [row(f"i{number % 2}", number, number, f"idle{number % 2}"), row("x", number, p="b")]
        table.upsert(rows)
    folded = {
        event.values["partition"]
        for event in table.events.records("file_written")
        if event.values.get("merged_logs")
        and event.values["partition"] not in ("idle0", "idle1", "b")
    }
    assert folded == {"idle2", "idle3"}
    assert sum(e.values["slices"] for e in table.events.records("slices_compacted")) == 2


def test_a_failed_fold_fails_no_commit(tmp_path: Path) -> None:
    """The event says why; when the cause is gone, a later commit folds."""
    table = make(tmp_path / "t")
    begin(table)
    (log,) = Path(table.path, "idle0").glob(".*.log.*")
    content = log.read_bytes()
    log.write_bytes(content[:-40] + bytes(40))
    live(table, 2, 20)
    why = [event.values["why"] for event in table.events.records("archive_postponed")]
    assert any(log.name in text and "deltacommit wrote" not in text for text in why)
    assert idle_logs(table.path) == IDLE and pending_names(table.path) == []
    log.write_bytes(content)
    live(table, 20, 40)
    assert idle_logs(table.path) == 0 and len(commits(table.path)) < 15
    assert rows_of(table.path) and table.fsck() == []


def stream(root: Path, first: int, last: int) -> EventLog:
    """Run checkpoints of a stream in a new process; each is prepared, then committed."""
    table, events = open_table(root), EventLog()
    settle(coordinator := WriteCoordinator(table, events))
    intake = Intake(table.config, table.schema)
    for number in range(first, last):
        data = pa.Table.from_pylist([row("x", number + 2, number, "b")], schema=SCHEMA)
        each = Checkpointing(coordinator, intake, Shape(), IN_PROCESS, commit_on="checkpoint")
        before = f"{number - 1}" if number else None
        with each.running(Checkpoint("q", number, f"{number}"), before) as work:
            if work is not None:
                rows = keyed_in_order(data, intake)
                work.statuses = write_in_process(rows, work.plan, events)
        each.notify(number)
    return events


def test_streams_fold(tmp_path: Path) -> None:
    """Between two checkpoints; a restarted stream knows all of them, with nothing prepared."""
    table = make(tmp_path / "t")
    root = Path(table.path)
    begin(table)
    events = stream(root, 0, 12)
    assert events.records("slices_compacted") and not events.records("instant_redone")
    assert idle_logs(root) == 0
    again = stream(root, 0, 14)
    assert len(again.records("batch_skipped")) == 12
    assert rows_of(root) == expected(13, ts=15)
    assert pending_names(root) == [] and table.fsck() == []
    assert len(commits(root)) <= 12


# --- crashes -------------------------------------------------------------------------------------


def act(table: Table) -> None:
    """Write the batch after which idle slices are folded."""
    live(table, 9, 10)


def act_again(table: Table) -> None:
    """Write the batch after it."""
    live(table, 10, 11)


@pytest.fixture(scope="module")
def prepared(new_folder: Callable[[], Path]) -> Path:
    """A table whose next commit folds."""
    root = new_folder() / "t"
    off = {"hoodie.archive.automatic": "false", "hoodie.clean.automatic": "false"}
    begin(table := make(root, **off))
    live(table, 2, 9)
    on = {name: "true" for name in off}
    create(root, options={**FEW, **on}, if_exists="open")
    whole = shutil.copytree(root, root.with_name("whole"))
    act(Table(opened(whole)))
    assert (idle_logs(root), idle_logs(whole)) == (IDLE, 0)
    return root


def check(root: Path) -> None:
    """The batch is in the table, whatever became of the fold, and no idle row has changed."""
    assert rows_of(root) == expected(9)


def expected(number: int, ts: int | None = None) -> list[str]:
    """Return the rows after a batch."""
    model = Model()
    model.upsert([row(f"i{n}", 1, 1, f"idle{n}") for n in range(IDLE)])
    model.upsert([row("x", ts or number, number, "b")])
    return model.snapshot()


def check_end(root: Path) -> None:
    """Later batches fold, clean and archive what is left."""
    live(Table(opened(root)), 10, 16)
    assert rows_of(root) == expected(15)
    table = Table.open(root)
    assert idle_logs(root) == 0
    assert len(archived(root, "deltacommit")) >= 2  # the second one wrote the idle logs
    assert pending_names(root) == [] and [str(f) for f in table.fsck()] == []


@pytest.mark.parametrize("how", ["before", "after", "torn", "error", "error_after", "interrupt"])
def test_a_failure_anywhere_loses_nothing(prepared: Path, how: str) -> None:
    """From the fold's instant on: readers see the batch, and logs or base files of idle slices."""
    first = operation_of(prepared, act, "coord.requested.pre")  # its last one is the fold's
    every = 1 if how == "before" else 3
    undone = set[bool]()
    for root, error in each_fault(prepared, act, how, first=first, every=every, at_least=10):
        assert how not in ("error", "error_after") or error is None
        check(root)
        undone.add(idle_logs(root) > 0)
        check_end(root)
    assert undone == {True, False}


def test_a_second_failure_loses_nothing(prepared: Path) -> None:
    """The next writer dies, too, while it undoes or completes the fold."""
    first = operation_of(prepared, act, "coord.requested.pre")  # its last one is the fold's
    doubled = 0
    for crashed, _ in each_fault(prepared, act, "before", first=first, every=7):
        for root, _ in each_fault(crashed, act_again, "before", every=9, at_least=0):
            assert rows_of(root) in (expected(9), expected(10))
            check_end(root)
            doubled += 1
    assert doubled > 5
