"""Any operation that changes the disk may fail in any way: no loss, duplicate or partial read.

One trial: a table has the first batches; a process runs the next one and its n-th operation
fails; both readers read; a new process recovers and replays; the table must have the batch
exactly once, with nothing pending. n = 1, 2, 3… until a run has no such operation.
"""

from __future__ import annotations

import errno
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from each_fault import each_fault
from faults import Crash
from lives import (
    BATCHES,
    MODELS,
    assert_finished,
    assert_whole_prefix,
    ended,
    finish,
    live,
    make,
    opened,
    runs,
)
from tables import data_files, timeline_names, without_meta

from hoodie_nb import failpoints
from hoodie_nb.errors import CommitFailed, WriteFailed
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.reading import read
from hoodie_nb.records.prepared import FOLDER
from hoodie_nb.view.markers import MARKERS

Trials = Callable[..., Iterator[tuple[Path, BaseException | None]]]
NUMBERS = (0, 1, 2, 3)  # the first commit, a mixed one, one that changes nothing, a delete


@pytest.fixture(scope="module")
def prepared(new_folder: Callable[[], Path]) -> dict[int, Path]:
    """Tables that hold the first n batches."""
    root = make(new_folder() / "t")
    found = {}
    for number in range(len(BATCHES)):
        live(opened(root), number)
        found[number] = root.with_name(f"after{number}")
        shutil.copytree(root, found[number])
    return found


def in_table(root: Path, number: int) -> bool:
    """Return whether batch `number` is in the snapshot; else it must be the previous one."""
    snapshot = without_meta(read.to_arrow(open_table(root)))
    assert snapshot in (MODELS[number], MODELS[number + 1])
    return snapshot == MODELS[number + 1]


@pytest.fixture
def commit_on() -> str:
    """When commits are made; tests that also need the other mode parametrise this."""
    return "write"


@pytest.fixture
def trials(prepared: dict[int, Path], number: int, commit_on: str) -> Trials:
    """Let operations of batch `number` fail."""
    return partial(each_fault, prepared[number], runs(number + 1, commit_on=commit_on))


both_modes = pytest.mark.parametrize("commit_on", ["write", "checkpoint"])


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("how", "commit_on"),
    [("before", "write"), ("after", "write"), ("torn", "write"), ("before", "checkpoint")],
)
def test_a_crash_at_any_operation_is_recovered(
    trials: Trials, number: int, how: str, commit_on: str
) -> None:
    """After a kill at any operation readers see whole commits; a new process gives the model."""
    for root, error in trials(how, every=3 if how == "after" else 1, at_least=10):
        assert isinstance(error, Crash)
        assert_whole_prefix(root)
        finish(root, number)


@pytest.mark.parametrize("number", [1])
@both_modes
def test_a_stream_continues_after_any_crash(trials: Trials, number: int, commit_on: str) -> None:
    """Later batches are written too, and every row of the workload is in the table once."""
    for root, _ in trials("before", every=5, at_least=16):
        live(opened(root))
        assert_finished(root)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("how", ["before", "after"])
@both_modes
def test_a_crash_inside_the_recovery_is_recovered(
    trials: Trials, number: int, how: str, commit_on: str
) -> None:
    """After a kill at any operation of the recovery the next process still gives the model."""
    doubled, seen, every = 0, set(), 2 if how == "before" else 4
    for crashed, _ in trials("before"):
        remains = (len(data_files(crashed)), len(timeline_names(crashed)), len(marks(crashed)))
        if remains in seen:  # like a recovery that already was crashed at every operation
            continue
        seen.add(remains)
        for root, error in each_fault(crashed, runs(0), how, every=every, at_least=0):
            doubled += 1
            assert isinstance(error, Crash)
            assert_whole_prefix(root)
            finish(root, number)
    assert doubled >= (20 if how == "before" else 6)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("how", ["interrupt", "interrupt_after"])
@both_modes
def test_an_interrupt_at_any_operation_applies_all_or_nothing(
    trials: Trials, number: int, how: str, commit_on: str
) -> None:
    """Ctrl-C is propagated from anywhere; the batch is applied or undone, a replay completes it."""
    often = (how, commit_on) == ("interrupt_after", "write")
    for root, error in trials(how, every=2 if often else 4, at_least=10):
        assert isinstance(error, KeyboardInterrupt)
        assert_whole_prefix(root)
        finish(root, number)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("how", "code"), [("error", errno.ENOSPC), ("error_after", errno.EIO)], ids=["ENOSPC", "EIO"]
)
@both_modes
def test_one_failing_operation_is_retried_or_rolled_back(
    trials: Trials, number: int, how: str, code: int, commit_on: str
) -> None:
    """After one disk error a retry succeeds, or the batch is undone and the error says so."""
    every = 2 if commit_on == "write" else 3
    for root, error in trials(how, code=code, every=every, at_least=8):
        check_outcome(root, number, error)
        finish(root, number)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("content_only", [True, False], ids=["full", "broken"])
def test_a_disk_that_stays_broken_is_reported_and_recovered_later(
    trials: Trials, number: int, content_only: bool
) -> None:
    """The error of a full or broken disk says what happened; a later replay completes the batch."""
    code = errno.ENOSPC if content_only else errno.EIO
    for root, error in trials("broken", code=code, content_only=content_only, every=2, at_least=2):
        check_outcome(root, number, error)
        finish(root, number)


def marks(root: Path) -> list[Path]:
    """Return the markers and prepared records that a crash left."""
    return [*(root / MARKERS).rglob("*.marker.*"), *prepared_records(root)]


def prepared_records(root: Path) -> list[Path]:
    """Return the records of checkpoints that a later start completes."""
    return list((root / FOLDER).glob("*.json"))


def check_outcome(root: Path, number: int, error: BaseException | None) -> None:
    """The batch is in the table, or it is not and the message says what to do."""
    assert_whole_prefix(root)
    changes = MODELS[number] != MODELS[number + 1]
    if error is None:
        assert in_table(root, number)
        return
    assert isinstance(error, (WriteFailed, CommitFailed)), repr(error)
    assert "not applied" in str(error)
    assert "write the data again" in str(error) or prepared_records(root)
    assert not changes or not in_table(root, number)


# --- killed for real --------------------------------------------------------------------------

KILLED_IN_A_COMMIT = [
    "coord.requested.pre",
    "coord.requested.post",
    "coord.inflight.post",
    "coord.statuses.pre",
    "coord.markers.post",
    "coord.partition.post",
    "coord.publish",
    "coord.publish.post",
    "coord.commit.pre",
    "coord.commit.post",
    "coord.progress.post",
    "coord.index.pre",
    "coord.index.post",
    "coord.sweep.post",
    "assigner.start",
    "writer.start",
    "writer.flush",
    "writer.data",
    "writer.data.post",
]
KILLED_WHILE_PREPARING = ["coord.prepare.pre", "coord.prepare.post", "coord.commit.pre"]
KILLED_IN_A_ROLLBACK = [
    "rollback.plan.post",
    "rollback.files.post",
    "rollback.instant.post",
    "rollback.completed.post",
]
ELSEWHERE = {
    "stream.batch.post",
    "coord.redo.pre",
    "coord.reapply.post",
    "coord.seal.pre",
    "coord.seal.post",
    "coord.unseal.post",
    *(
        n
        for n in failpoints.NAMES
        if n.startswith(("archive.", "clean.", "savepoint.", "restore.", "quarantine.", "spark."))
    ),
}
TRIALS = [
    *((f"{name}=kill@2", "write") for name in KILLED_IN_A_COMMIT),
    *((f"{name}=kill@2", "checkpoint") for name in KILLED_WHILE_PREPARING),
    *((f"coord.commit.pre=raise:EIO;{name}=kill", "write") for name in KILLED_IN_A_ROLLBACK),
    *((f"writer.data=torn:{part}@3", "write") for part in (0, 0.5, 0.99)),
    ("writer.data=exit:3@3", "write"),
]


def test_every_failpoint_has_a_trial() -> None:
    """No failpoint of the library is left out of the trials."""
    tried = {*KILLED_IN_A_COMMIT, *KILLED_WHILE_PREPARING, *KILLED_IN_A_ROLLBACK}
    assert tried | ELSEWHERE == set(failpoints.NAMES)


def live_in_small_files(root: Path, commit_on: str) -> None:
    """Run all batches in a new process, whose buffers and files are small."""
    table = opened(root)
    table.options = table.options.updated({"write.batch.size": 1, "write.task.max.size": 1})
    live(table, commit_on=commit_on)


@pytest.mark.kills
@pytest.mark.parametrize(("armed", "commit_on"), TRIALS)
def test_a_killed_process_is_recovered(tmp_path: Path, armed: str, commit_on: str) -> None:
    """SIGKILL at a failpoint: readers see whole commits, and a new process gives the model."""
    root = make(tmp_path / "t")
    act = partial(live_in_small_files, commit_on=commit_on)
    assert ended(armed, act, root) == (3 if "exit" in armed else -signal.SIGKILL)
    assert_whole_prefix(root)
    live(opened(root), commit_on=commit_on)
    assert_finished(root)


@pytest.fixture
def testing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow failpoints to be armed; after the test none is armed."""
    monkeypatch.setenv("HOODIE_NB_TESTING", "1")
    yield
    failpoints.arm("")


@pytest.mark.usefixtures("testing")
def test_a_commit_is_tried_four_times(tmp_path: Path) -> None:
    """After each of three publishing errors a doubled pause follows; the fourth is raised."""
    root = make(tmp_path / "t")
    for hit in ("@1", ""):
        failpoints.arm(f"coord.publish=raise:EIO{hit}")
        table, number = opened(root), 1 if hit else 2
        began = table.clock.now_ms()
        if hit:
            assert len(live(table, number).records("commit_retried")) == 1
            assert table.clock.now_ms() - began == 500
        else:
            with pytest.raises(CommitFailed, match=r"not applied.*rolled back") as caught:
                live(table, number)
            assert caught.value.retryable
            assert table.clock.now_ms() - began == 3500
        assert_whole_prefix(root)
        assert without_meta(read.to_arrow(open_table(root))) == MODELS[1]
