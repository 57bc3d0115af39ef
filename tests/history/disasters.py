"""The disasters of a history: crashes, disk errors, damaged files, clock changes."""

from __future__ import annotations

import shutil
from pathlib import Path

from core.faults import Crash, Fault
from history.damage import OURS, Damage, files_of_ours
from history.job import History
from index_truth import forget_caches

from hoodie_nb import failpoints
from hoodie_nb.errors import InvalidTable


def crash(history: History) -> None:
    """Let the process die soon, at some failpoint or disk operation."""
    storage = history.job.table.storage
    if history.random.random() < 0.5:
        how = history.random.choice(["before", "after", "torn"])
        storage.fault = Fault(storage.steps + history.random.randint(1, 30), how)
        return
    names = [n for n in failpoints.NAMES if not n.startswith("stream")]
    die_at(history, history.random.choice(names), history.random.randint(1, 2))


def die_at(history: History, name: str, on_hit: int = 1) -> None:
    """Let the process die at a failpoint."""
    storage = history.job.table.storage

    def die() -> None:
        storage.dead = True
        raise Crash(name)

    failpoints.call(name, die, on_hit)
    history.verbs.append(name)


def disk_error(history: History) -> None:
    """Let one of the next disk operations fail."""
    storage = history.job.table.storage
    how = history.random.choice(["error", "error_after"])
    storage.fault = Fault(storage.steps + history.random.randint(1, 30), how)


def damage(history: History) -> None:
    """Damage one of our files between two processes: the start refuses, or there is no effect.

    After a refusal the file is restored, and the job continues.
    """
    history.end_process()
    files = files_of_ours(history.path)
    if not files:
        history.start()
        return
    damaged = Damage.draw(history.random, files)
    if (damaged.kind, damaged.how) == ("progress", "gone"):  # a later rewind is refused, rightly
        history.start()
        return
    history.verbs.append(str(damaged))
    damaged.apply()
    history.index_damaged |= damaged.kind.startswith("index")
    forget_caches()  # a new process has none
    try:
        history.start()
        history.job.checkpointing.complete()
    except InvalidTable as error:
        history.verbs.append("InvalidTable")
        damaged.check_message(str(error))
        history.end_process()
        damaged.undo()
        history.start()


def restore_seals(history: History) -> None:
    """Restore earlier sealed records, sometimes with their runs; keep the current ones.

    Only the applied ones are new in the folder: they must not be applied again.
    """
    history.end_process()
    ours, backup = history.path / OURS, history.path.with_name("backup")
    if backup.exists():
        for folder in ("sealed", "staged")[: history.random.randint(1, 2)]:
            shutil.copytree(backup / folder, ours / folder, dirs_exist_ok=True)
        shutil.rmtree(backup)
    for folder, files in (("sealed", "*.json"), ("staged", "seal*/*")):
        (backup / folder).mkdir(parents=True)
        for file in (ours / folder).glob(files):
            copy = backup / file.relative_to(ours)
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(file, copy)
    history.start()


def set_clock(history: History) -> None:
    """Set the clock back or forward; an interval of 30 seconds is due 31 seconds later."""
    history.clock.ms += history.random.choice([-3_600_000, -60_000, 60_000, 3_600_000])
    interval = history.traits.interval
    if interval is not None and interval.duration_ms is not None:
        history.job.checkpointing.due()  # the watcher looks several times a second
        history.clock.ms += interval.duration_ms + 1000
        waits = any((Path(history.path) / ".hoodie/.hoodie_nb/sealed").glob("*"))
        assert not waits or history.job.checkpointing.due(), "an interval outlives its duration"


def long_interval(history: History) -> None:
    """Seal more checkpoints than fit into any cache, then die during or after their commit."""
    for _ in range(history.random.randint(105, 130)):
        history.write(3)
        history.checkpoint()
    if history.random.random() < 0.6:
        names = ["coord.commit.post", "coord.progress.post", "coord.index.post", "coord.sweep.post"]
        die_at(history, history.random.choice(names))
    else:
        storage, how = history.job.table.storage, history.random.choice(["before", "after", "torn"])
        storage.fault = Fault(storage.steps + history.random.randint(1, 150), how)
    history.complete()
