"""Other users of the table: another engine, another schema, a forked child, a bad batch."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

import pyarrow as pa
from core.faults import Crash
from core.writes import write_uncommitted
from history.disasters import die_at
from history.job import History
from history.model import DELETED, identity
from history.rows import SCHEMA, crafted, table_of

from hoodie_nb import failpoints
from hoodie_nb.actions.archive_plan import ArchivePlan
from hoodie_nb.actions.rollback import _METADATA, RollbackPlan, _encoded, _metadata, roll_back
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.archiving import archive
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import ConcurrentWriter, InvalidInput
from hoodie_nb.events import EventLog
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.types.avro_file import encode
from hoodie_nb.view.markers import marked_files


@contextlib.contextmanager
def unarmed() -> Iterator[None]:
    """Disarm the failpoints while the other engine runs."""
    armed = dict(failpoints._armed)
    failpoints._armed.clear()
    try:
        yield
    finally:
        failpoints._armed.update(armed)


def commit(history: History, columns: pa.Schema | None = None) -> None:
    """Commit from another engine; of equal keys the greater ts wins, in any order of arrival.

    The table has the columns `columns` from then on, if given.
    """
    history.foreign = True
    insert = history.traits.insert
    columns = columns or history.columns
    rows = history.rows.take(columns, prefix="f" if insert else "k", deletes=False)
    history.rows.ts += 1
    newest = {identity(row): {**row, "ts": history.rows.ts} for row in rows}
    fresh = [row for row in newest.values() if not (insert and history.model.knows(row))]
    if fresh:
        instant = _commit(history, table_of(fresh, columns), Intake(history.config, columns))
        if columns != history.columns:
            history.widened = instant
        history.columns = columns
        history.model.write(fresh, instant)


def _commit(history: History, rows: pa.Table, intake: Intake) -> str:
    """Commit rows; return the instant's time."""
    handle = history.handle()
    coordinator = WriteCoordinator(handle, EventLog())
    keyed = keyed_in_order(rows, intake)
    with unarmed():
        shape = Shape(index="bloom")  # our index learns nothing from another engine
        result = write_uncommitted(
            coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog()), shape
        )
        coordinator.complete([result], intake)
        return result.instant_time


def new_columns(history: History) -> None:
    """Commit rows from another engine with a new nullable column, or with a wider one."""
    columns = history.columns
    added, narrow = len(columns) - len(SCHEMA), columns.field("n").type == pa.int32()
    if narrow and history.random.random() < 0.4:
        columns = columns.set(columns.get_field_index("n"), pa.field("n", pa.int64()))
    elif added < 3:
        kind = history.random.choice([pa.string(), pa.int64(), pa.int32()])
        columns = columns.append(pa.field(f"x{added}", kind))
    commit(history, columns)


def rolls_back(history: History) -> None:
    """Let another engine roll back what is pending, as Java's writer does before its own write."""
    history.foreign = True
    handle = history.handle()
    with unarmed():
        for pending in handle.timeline.pending():
            if pending.action in ("commit", "deltacommit"):
                plan = RollbackPlan(pending, marked_files(handle.storage, pending.requested_time))
                requested = handle.timeline.request("rollback", _encoded(handle, plan))
                rollback = handle.timeline.begin(requested)
                roll_back(handle, pending, keep_staged=True)
                named = encode(_METADATA, _metadata(rollback, pending, []))
                handle.timeline.complete(rollback, named)


def archives(history: History) -> None:
    """Die around a commit; then another engine commits, and archives what it may.

    That is every commit before the newest one and before what is pending.
    """
    points = ["coord.commit.pre", "coord.commit.post", "coord.progress.post", "coord.unseal.post"]
    die_at(history, history.random.choice(points))
    with contextlib.suppress(Crash):
        history.complete()
    history.end_process()
    commit(history)
    handle = history.handle()
    pending = [i.requested_time for i in handle.timeline.pending()]
    done = handle.timeline.completed_commits()
    gone = [i for i in done[:-1] if i.requested_time < min(pending, default="9")]
    archive(handle, ArchivePlan(tuple(gone)), EventLog().emit)
    history.start()


def bad_batch(history: History) -> None:
    """Let the source send a key with another key's text: it is refused and nothing changes.

    The source removes the batch again, and the job continues.
    """
    if history.traits.keys != "composite":
        return
    rows = history.rows.take(history.sent, deletes=False)
    bad = table_of([*rows, {**rows[0], **crafted(history.random), DELETED: False}], history.sent)
    source, history.number = history.source, history.number + 1
    try:
        history.job.write(bad)
        history.job.checkpoint(history.number)
    except InvalidInput:
        pass
    else:
        raise AssertionError("an ambiguous key was accepted")
    finally:
        source.rows[:] = [piece for piece in source.rows if piece is not bad]
        for number, end in source.barriers.items():
            source.barriers[number] = min(end, len(source.rows))
    history.failover()


def forked(history: History) -> None:
    """A child of the process that holds the lock cannot write, and does not block others."""
    storage = history.job.table.storage
    hold = JobHold(storage, "the history")
    answers, answer = os.pipe()
    alive, parent = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads is the claim
        child = os.fork()
    if child == 0:
        os.close(parent)
        _try_to_write(storage, answer, alive)
    os.close(alive)
    try:
        said = os.read(answers, 100).decode()
        hold.release()
        JobHold(storage, "the history").release()  # while the child lives
    finally:
        os.close(parent)
        os.waitpid(child, 0)
        os.close(answer)
        os.close(answers)
    assert said == "refused", f"a forked child: {said}"


def _try_to_write(storage: LocalStorage, answer: int, alive: int) -> None:
    """Try to write in parallel with the parent, report the result, and exit; never returns."""
    try:
        with writing(storage, 0.0):
            os.write(answer, b"wrote next to the holder")
    except ConcurrentWriter:
        os.write(answer, b"refused")
    except BaseException as error:
        os.write(answer, repr(error).encode()[:100])
    finally:
        os.read(alive, 1)
        os._exit(0)
