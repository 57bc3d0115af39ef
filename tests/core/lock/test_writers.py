"""The list of a table's writers: who has the lock, who waits, whose stream lives, who is dead."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from test_waiting import WRITES, answer, storage, waiting

from hoodie_nb import Table
from hoodie_nb.__main__ import main
from hoodie_nb.lock import writers as writers_module
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.lock.writers import writers
from hoodie_nb.programs.doctor import doctor
from hoodie_nb.programs.lessons import start_program
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import TURNS

__all__ = ["storage"]  # the fixture
UPSERT = """
import sys
from hoodie_nb import Table
from hoodie_nb.__main__ import main
Table.open(sys.argv[1]).upsert([{"id": "k", "v": "theirs"}])
"""


def states(storage: LocalStorage) -> list[tuple[str, int | None]]:
    """Return the states and processes of the writers."""
    return [(writer.state, writer.process) for writer in writers(storage)]


def test_a_table_at_rest_has_no_writers(storage: LocalStorage) -> None:
    """The files of locks stay where they are; nobody has them."""
    with writing(storage):
        pass
    assert writers(storage) == []


def test_who_writes_waits_and_has_died_is_listed(storage: LocalStorage) -> None:
    """The place of a dead process is told from that of a living one, and nothing is changed."""
    here = ("writes", os.getpid())
    with writing(storage), waiting(storage, WRITES) as first:
        with waiting(storage, WRITES, count=2) as second:
            assert states(storage) == [here, ("waits", first.pid), ("waits", second.pid)]
        second.wait()
        for _ in range(2):
            assert states(storage) == [here, ("waits", first.pid), ("died", second.pid)]
        report = str(doctor(table=storage.root))
        assert f"process {os.getpid()} writes the table (a batch write, since" in report
        assert f"process {first.pid} waits (a batch call, or a stream that starts)" in report
        died = f"process {second.pid} has died, or is elsewhere (it waited)"
        assert died in report
        assert died in repr(Table.open(storage.root).writers())


def test_a_stream_is_listed_also_between_its_turns(storage: LocalStorage) -> None:
    """Its file is locked from its start to its end."""
    hold = JobHold(storage, "a stream", checkpoint="/checkpoint")
    assert states(storage) == [("writes", os.getpid())]
    with waiting(storage, WRITES) as other:
        hold.give_way()
        assert other.stdout is not None and other.stdout.readline() == "has it\n"
        assert states(storage) == [("writes", other.pid), ("pauses", os.getpid())]
    hold.release()
    assert states(storage) == []


def test_a_stream_that_waits_for_its_next_turn_is_listed_once(storage: LocalStorage) -> None:
    """It has a place in the line, and its life tells that it is a stream."""
    hold = JobHold(storage, "a stream", checkpoint="/checkpoint")

    def write() -> None:
        with hold.writing():
            pass

    with waiting(storage, WRITES) as other, ThreadPoolExecutor(1) as threads:
        hold.give_way()
        assert answer(other) == "has it"
        turn = threads.submit(write)
        while ("waits", os.getpid()) not in states(storage):
            assert not turn.done()
        writer, waits = writers(storage)
        assert (writer.process, waits.what) == (other.pid, "a stream")
        other.kill()
        turn.result()
    hold.release()


def test_the_line_names_the_batch_that_is_written_ahead(tmp_path: Path) -> None:
    """Of the one that waits, the instant whose files it stages; of this table, how many fitted."""
    rows = [{"id": "k", "v": "mine"}]
    schema = pa.schema([("id", pa.string()), ("v", pa.string())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id", table_version=9)
    other = start_program(UPSERT, table.path, stop_at="coord.commit.pre")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(table.upsert, rows)
        while not any(one.ahead for one in table.writers()):
            assert not call.done()
        first, second = table.writers()
        assert (first.state, first.process) == ("writes", other.pid)
        assert (second.state, second.process, second.sure) == ("waits", os.getpid(), True)
        assert f"(a batch call, written ahead as {second.ahead})" in str(second)
        other.send_signal(signal.SIGCONT)
        done = call.result()
    other.wait()
    assert done is not None and done.requested_time > second.ahead
    found = table.writers()
    assert (found.found, found.fitted, found.again) == ((), 0, 1)
    lines = ["nobody writes the table", "1 batch written ahead: 0 fitted, 1 written again"]
    assert repr(found).splitlines() == lines
    assert all(line in found._repr_html_() for line in lines)


def test_who_died_in_its_turn_is_listed_until_the_next_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lock is free, and its staged files are there; the next write deletes them."""
    schema = pa.schema([("id", pa.string()), ("v", pa.string())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id", table_version=9)
    other = start_program(UPSERT, table.path, kill_at="writer.data.post")
    other.wait()
    (found,) = table.writers()
    assert (found.state, found.process, found.sure) == ("died", other.pid, True)
    left = f"process {other.pid} has died (it left files: a batch write, since"
    assert str(found).startswith(left)
    assert main(["fsck", table.path]) == 1  # its instant is pending
    assert f"\n{left}" in capsys.readouterr().out
    table.upsert([{"id": "k", "v": "mine"}])
    assert repr(table.writers()) == "nobody writes the table"


def test_who_leaves_the_line_meanwhile_has_not_died(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place was there when the line was listed, and is gone when the locks are read."""
    read = writers_module._locked
    with writing(storage), waiting(storage, WRITES) as other:

        def late() -> dict[int, int] | None:
            for name in storage.file_names(TURNS):
                os.unlink(f"{storage.root}/{TURNS}/{name}")
            return read()

        monkeypatch.setattr(writers_module, "_locked", late)
        assert states(storage) == [("writes", os.getpid())]
        assert other.poll() is None
