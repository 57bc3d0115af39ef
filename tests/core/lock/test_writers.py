"""The list of a table's writers: who has the lock, who waits, whose stream lives, who is dead."""

from __future__ import annotations

import os

from test_waiting import WRITES, storage, waiting

from hoodie_nb.lock.lock import JobHold, writing
from hoodie_nb.lock.writers import writers
from hoodie_nb.programs.doctor import doctor
from hoodie_nb.storage.local_storage import LocalStorage

__all__ = ["storage"]  # the fixture


def roles(storage: LocalStorage) -> list[tuple[str, int | None]]:
    """Return the roles and processes of the writers."""
    return [(writer.role, writer.process) for writer in writers(storage)]


def test_a_table_at_rest_has_no_writers(storage: LocalStorage) -> None:
    """The files of locks stay where they are; nobody has them."""
    with writing(storage):
        pass
    assert writers(storage) == []


def test_who_writes_waits_and_has_died_is_listed(storage: LocalStorage) -> None:
    """The place of a dead process is told from that of a living one, and nothing is changed."""
    here = ("writes the table", os.getpid())
    with writing(storage), waiting(storage, WRITES) as first:
        with waiting(storage, WRITES, count=2) as second:
            found = [("waits", first.pid), ("waits", second.pid)]
            assert roles(storage) == [here, *found]
        second.wait()
        dead = ("waited", None)
        for _ in range(2):
            assert roles(storage) == [here, ("waits", first.pid), dead]
        report = str(doctor(table=storage.root))
        assert f"process {os.getpid()} writes the table (a batch write, process" in report
        assert f"process {first.pid} waits" in report
        assert "a process that has ended, or is elsewhere, waited" in report


def test_a_stream_is_listed_also_between_its_turns(storage: LocalStorage) -> None:
    """Its file is locked from its start to its end."""
    hold = JobHold(storage, "a stream", checkpoint="/checkpoint")
    stream = ("runs a stream into the table", os.getpid())
    assert roles(storage) == [("writes the table", os.getpid()), stream]
    with waiting(storage, WRITES) as other:
        hold.give_way()
        assert other.stdout is not None and other.stdout.readline() == "has it\n"
        assert roles(storage) == [("writes the table", other.pid), stream]
    hold.release()
    assert roles(storage) == []
