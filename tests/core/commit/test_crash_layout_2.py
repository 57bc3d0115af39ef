"""Any operation on a table of version 9 may fail in any way, as in `test_crash_loop`.

The name of its completed file has the time of writing, so a second attempt has another name: each
trial also checks that no instant has two completed files, and that both times only grow.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from each_fault import each_fault
from faults import Crash
from lives import (
    BATCHES,
    assert_finished,
    assert_whole_prefix,
    finish,
    live,
    make,
    opened,
    runs,
)
from tables import timeline_folder, timeline_names, upgrade

from hoodie_nb.errors import HoodieError

both_modes = pytest.mark.parametrize("commit_on", ["write", "checkpoint"])


@pytest.fixture(scope="module")
def prepared(new_folder: Callable[[], Path]) -> dict[int, Path]:
    """Tables of version 9 that hold the first n batches."""
    root = make(new_folder() / "t", 9)
    found = {}
    for number in range(len(BATCHES)):
        live(opened(root), number)
        found[number] = root.with_name(f"after{number}")
        shutil.copytree(root, found[number])
    return found


def trials(
    source: Path, number: int, how: str, commit_on: str, every: int = 1, at_least: int = 1
) -> Iterator[tuple[Path, object]]:
    """Let operations of a batch fail; at each time an instant has at most one completed file."""
    act = runs(number + 1, commit_on=commit_on)
    for root, error in each_fault(source, act, how, every=every, at_least=at_least, raises=OSError):
        assert_single(root)
        yield root, error
        assert_single(root)


def assert_single(root: Path) -> None:
    """Each instant has at most one completed file; all times are different, and in order."""
    done = [name.partition(".")[0].split("_") for name in timeline_names(root) if "_" in name]
    for times in zip(*done, strict=True):
        assert len(set(times)) == len(done)
    times = [time for pair in sorted(done) for time in pair]
    assert times == sorted(times)


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize(
    ("how", "commit_on"), [("before", "write"), ("torn", "write"), ("after", "checkpoint")]
)
def test_a_crash_at_any_operation_is_recovered(
    prepared: dict[int, Path], tmp_path: Path, number: int, how: str, commit_on: str
) -> None:
    """After a kill at any operation readers see whole commits; a new process gives the model."""
    every = 3 if how == "torn" else 2
    for root, error in trials(prepared[number], number, how, commit_on, every, at_least=10):
        assert isinstance(error, Crash)
        assert_whole_prefix(root)
        finish(root, number)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_crash_inside_the_recovery_is_recovered(
    prepared: dict[int, Path], tmp_path: Path, how: str
) -> None:
    """After a kill at any operation of the recovery the next process still gives the model."""
    doubled, seen = 0, set()
    for crashed, _ in trials(prepared[1], 1, "before", "checkpoint"):
        files = len(list(crashed.rglob("*.parquet"))), len(list(crashed.rglob("*.json")))
        remains = (len(timeline_names(crashed)), *files)
        if remains in seen:  # like a recovery that was crashed at every operation already
            continue
        seen.add(remains)
        recovery = runs(0, commit_on="checkpoint")
        for root, error in each_fault(crashed, recovery, how, every=2, at_least=0):
            doubled += 1
            assert isinstance(error, Crash)
            assert_whole_prefix(root)
            finish(root, 1)
            assert_single(root)
    assert doubled >= 10


@pytest.mark.parametrize("number", [1])
@pytest.mark.parametrize("how", ["error", "error_after", "interrupt", "interrupt_after"])
@both_modes
def test_one_failing_operation_applies_all_or_nothing(
    prepared: dict[int, Path], tmp_path: Path, number: int, how: str, commit_on: str
) -> None:
    """After one disk error or Ctrl-C the batch is in the table or not; a replay completes it."""
    every = 2 if (commit_on, how[:5]) == ("write", "error") else 3
    for root, error in trials(prepared[number], number, how, commit_on, every):
        if how.startswith("interrupt"):
            assert isinstance(error, KeyboardInterrupt)
        else:
            assert error is None or isinstance(error, HoodieError | OSError)
        assert_whole_prefix(root)
        finish(root, number)


@pytest.mark.parametrize("rolled_back", [True, False])
@both_modes
def test_an_upgrade_after_a_crash_is_followed(
    new_folder: Callable[[], Path], tmp_path: Path, commit_on: str, rolled_back: bool
) -> None:
    """A crash in version 6, then an upgrade: the next process completes or redoes the batch in 9.

    Java rolls pending instants back before it upgrades, unless it leaves them to their writers.
    """
    source = make(new_folder() / "t")
    live(opened(source), 1)
    for root, _ in trials(source, 1, "before", commit_on, every=2):
        done = {name[:17] for name in timeline_names(root) if name.endswith(".commit")}
        dead = [p for p in root.rglob("2*") if p.is_file() and p.name[:17] not in done]
        dead += [p for p in root.glob("*/*.parquet") if p.stem[-17:] not in done]
        for file in dead if rolled_back else ():
            file.unlink()
        upgrade(root)
        assert_whole_prefix(root)
        finish(root, 1)


def test_an_upgrade_between_two_batches_of_a_process_is_followed(tmp_path: Path) -> None:
    """An open handle writes the next batch in the new layout."""
    root = make(tmp_path / "t")
    handle = opened(root)
    live(handle, 1)
    upgrade(root)
    live(handle, 2, commit_on="checkpoint")
    assert [name for name in timeline_names(root) if name.endswith(".inflight")][1:]
    finish(root, 1)
    assert_single(root)


def test_a_stream_writes_every_batch(tmp_path: Path) -> None:
    """The whole workload on an empty table of version 9 ends in the model, with Avro commits."""
    for version in (8, 9):
        root = make(tmp_path / f"v{version}", version)
        live(opened(root))
        assert_finished(root)
        assert_single(root)
        done = list(timeline_folder(root).glob("*_*.commit"))
        assert done
        assert all(file.read_bytes().startswith(b"Obj") for file in done)
