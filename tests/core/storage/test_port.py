"""Every change of a table uses the storage interface, so that faults can be injected."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from faults import Crash
from lives import SCHEMA, make

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.index.job_keys import FOLDER, StateIndex
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.records.sealing import Interval

PORT = ("storage/local_storage.py", "storage/beneath.py", "lock/lock.py")
LOCAL = re.compile(r".*-(run\d+|fold)\.arrow\d*")  # files that a task spills and reads itself
CHANGES = {"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
    """Records each change of files below a folder that does not come from the storage."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.found: list[str] = []
        self.changes = 0

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        """Handle one audit event of the interpreter."""
        if self.root is None or not (event in CHANGES or event == "open"):
            return
        flags = args[2] if event == "open" else WRITES
        if not (isinstance(flags, int) and flags & WRITES):
            return
        self.changes += 1
        path = str(args[0])
        if path.startswith(self.root) and not LOCAL.fullmatch(path) and not through_the_port():
            self.found.append(f"{event} {path.removeprefix(self.root)}")


def through_the_port() -> bool:
    """Whether one of the callers is a method of the storage, or the lock."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_filename.endswith(PORT):
            return True
        frame = frame.f_back
    return False


WATCH = Watch()
sys.addaudithook(WATCH)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Path]:
    """The folder of a table whose changes are watched."""
    WATCH.found, WATCH.changes, WATCH.root = [], 0, str(tmp_path / "t")
    yield tmp_path / "t"
    WATCH.root = None


def rows(first: int, last: int, ts: int) -> pa.Table:
    """Return rows of three partitions."""
    some = [{"id": f"k{i}", "p": f"par{i % 3}", "ts": ts, "v": i} for i in range(first, last)]
    return pa.Table.from_pylist(some, schema=SCHEMA)


def batches(root: Path) -> None:
    """Write, delete and load through the public API, with buckets that spill."""
    table = Table.open(root)
    table._handle.options = replace(table._handle.options, batch_bytes=1000)
    table.upsert(rows(0, 600, 1))
    table.upsert(rows(300, 900, 2))
    table.delete(pa.Table.from_pylist([{"id": "k1", "p": "par1"}, {"id": "zz", "p": "par9"}]))
    table.rebuild_index()
    table._handle.storage.remove(
        ".hoodie/.hoodie_nb/index", tree=True
    )  # the next write loads files
    table.upsert(rows(0, 9, 3))


def interval(root: Path) -> None:
    """Seal two checkpoints and commit them together."""
    job = LocalJob(open_table(root), interval=Interval(2))
    for number in (1, 2):
        job.write(rows(0, 9, number))
        job.checkpoint(number)
        job.complete(number)


def replaced(root: Path) -> None:
    """Replace a table that has rows."""
    Table.open(root).upsert(rows(0, 9, 1))
    Table.create(root, schema=SCHEMA, record_key="id", partition_by="p", if_exists="replace")


@pytest.mark.parametrize("act", [batches, interval, replaced])
def test_every_change_of_a_table_passes_the_port(
    watched: Path, act: Callable[[Path], None]
) -> None:
    """Only storage and lock create, rename or delete files of the table."""
    make(watched)
    act(watched)
    assert sorted(set(WATCH.found)) == []
    assert WATCH.changes > 20


# --- the state of index="state", in the checkpoint folder -------------------------------------


def remembered(folder: Path) -> Path:
    """Return the only run of a state with two keys."""
    index = StateIndex(str(folder))
    index.remember("par0", pa.array(["a", "b"]), pa.array(["file-0", "file-1"]))
    index.save("1.0-0")
    assert StateIndex(str(folder)).locate("par0", pa.array(["b", "c"])).to_pylist() == [
        "file-1",
        None,
    ]
    (run,) = (folder / FOLDER).rglob("*.arrow")
    return run


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "longer", "other"])
def test_a_damaged_state_is_refused(tmp_path: Path, damage: str) -> None:
    """Any flipped bit, and any truncated file, is an error that names the file and the fix."""
    run = remembered(tmp_path)
    good = run.read_bytes()
    bad = {"cut": [good[:n] for n in range(1, len(good), 50)], "empty": [b""], "longer": [good * 2]}
    bad["flipped"] = [
        good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in range(len(good))
    ]
    bad["other"] = [run.with_name("0.runs").read_bytes()]
    for content in bad[damage]:
        run.write_bytes(content)
        with pytest.raises(InvalidTable, match=rf"{run.name}.*damaged.*index='bloom\+state'"):
            StateIndex(str(tmp_path)).locate("par0", pa.array(["a"]))
    run.write_bytes(good)
    assert StateIndex(str(tmp_path)).locate("par0", pa.array(["a"])).to_pylist() == ["file-0"]


def test_a_state_is_saved_all_or_nothing(watched: Path) -> None:
    """Content saved twice under one name exists once, without temporary files."""
    remembered(watched)
    remembered(watched)
    names = [p.name for p in watched.rglob("*") if p.is_file()]
    assert sorted(names) == ["0.runs", "1.0-0.arrow"]


@pytest.mark.parametrize("gone", ["0.runs", "1.0-0.arrow", "2.0-0.arrow"])
def test_a_state_that_lost_a_file_is_refused(tmp_path: Path, gone: str) -> None:
    """The loss of the newest run, of an older one or of a task's list is detected."""
    remembered(tmp_path)
    index = StateIndex(str(tmp_path))
    index.remember("par0", pa.array(["c"]), pa.array(["file-2"]))
    index.save("2.0-0")
    index.save("3.0-1")
    (tmp_path / FOLDER / gone).unlink()
    with pytest.raises(InvalidTable, match=rf"{gone} is damaged or missing.*index='bloom\+state'"):
        StateIndex(str(tmp_path))


def test_the_state_names_all_copies_of_a_key(tmp_path: Path) -> None:
    """A key that the job inserted into several file groups is found in each of them."""
    index = StateIndex(str(tmp_path))
    for file_id in ("f0", "f1", "f2"):
        index.remember("par0", pa.array(["a", file_id]), pa.array([file_id, file_id]))
    index.save("1.0-0")
    index = StateIndex(str(tmp_path))
    keys = pa.array(["b", "a", "f1"])
    located = index.locate("par0", keys)
    rows, ids = index.copies("par0", keys, located)
    assert rows.tolist() == [1, 1]
    twice, other = index.copies("par0", pa.array(["a", "a"]), pa.array(["f0", "f0"]))
    assert sorted(zip(twice.tolist(), other, strict=True)) == [
        (0, "f1"),
        (0, "f2"),
        (1, "f1"),
        (1, "f2"),
    ]
    assert {located[1].as_py(), *ids} == {"f0", "f1", "f2"}


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_crash_while_a_state_is_saved_is_survived(tmp_path: Path, steps: int) -> None:
    """After a crash at any file the next start reads the state and saves further runs."""
    storage, left = StateIndex(str(tmp_path))._storage, itertools.count(steps, -1)

    def dying(name: str, content: bytes, **_: bool) -> None:
        if next(left) == 0:
            raise Crash("no more")
        type(storage).put(storage, name, content)

    with contextlib.suppress(Crash):
        for name, key in (("1.0-0", "a"), ("2.0-0", "b"), ("3.0-0", "c")):
            index = StateIndex(str(tmp_path))
            index._storage.put = dying  # type: ignore[method-assign,assignment]
            index.remember("par0", pa.array([key]), pa.array(["file-0"]))
            index.save(name)
    after = StateIndex(str(tmp_path))
    after.remember("par0", pa.array(["d"]), pa.array(["file-1"]))
    after.save("4.0-0")
    assert StateIndex(str(tmp_path)).locate("par0", pa.array(["d"])).to_pylist() == ["file-1"]
