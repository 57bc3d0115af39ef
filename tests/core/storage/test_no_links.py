"""File systems without hard links: there too, a name appears only with its whole content."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from each_fault import each_fault
from faults import FaultyStorage
from lives import (
    MODELS,
    assert_at_rest,
    assert_finished,
    assert_whole_prefix,
    live,
    make,
    opened,
    runs,
)
from tables import timeline_names, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage import beneath
from hoodie_nb.storage.storage import SCRATCH, read_bytes


@pytest.fixture(params=["renameat2", "plain rename"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FaultyStorage:
    """A storage without hard links in an empty folder; also as on a kernel without renameat2."""
    if request.param == "plain rename":
        monkeypatch.setattr(beneath, "_LIBC", None)
    made = FaultyStorage(tmp_path, links=False)
    made.make_folder(".hoodie")
    return made


@pytest.fixture
def nearly_full() -> Iterator[None]:
    """Limit files to 100 bytes, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk with room for 100 kB, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user cannot mount a disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_content_is_written_once_and_then_renamed(small_disk: Path) -> None:
    """Without links the content is written once, under a temporary name, and renamed."""
    storage = FaultyStorage(small_disk, links=False)
    storage.make_folder(".hoodie")
    storage.put(".hoodie/new", b"x" * 60_000, new=True)
    assert len(read_bytes(storage, ".hoodie/new")) == 60_000
    storage.remove(".hoodie/new")
    Path(small_disk, "staged").write_bytes(b"x" * 36_000)
    storage.publish("staged", ".hoodie/published")
    assert len(read_bytes(storage, ".hoodie/published")) == 36_000
    with pytest.raises(OSError, match="No space"):
        storage.put(".hoodie/new", b"x" * 36_000, new=True)
    assert storage.entry(".hoodie/new") is None
    assert scratch(storage) == []


def scratch(storage: FaultyStorage) -> list[Path]:
    """Return the remaining temporary files."""
    folder = Path(storage.root, SCRATCH)
    return list(folder.iterdir()) if folder.exists() else []


@pytest.mark.usefixtures("nearly_full")
def test_a_full_disk_leaves_no_half_file(storage: FaultyStorage) -> None:
    """If content cannot be written completely, no name appears and no temporary file is left."""
    with pytest.raises(OSError, match="too large"):
        storage.put(".hoodie/new", b"x" * 1000, new=True)
    staged = Path(storage.root, "staged")
    with open("/dev/zero", "rb") as zeros, staged.open("wb") as sink:
        sink.write(zeros.read(100))
    os.truncate(staged, 100)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(OSError, match="too large"):
        storage.publish("staged", ".hoodie/published")
    assert storage.entry(".hoodie/new") is None
    assert storage.entry(".hoodie/published") is None
    assert scratch(storage) == []


def test_a_name_that_is_taken_is_never_replaced(storage: FaultyStorage) -> None:
    """Without links, `put(new=True)` and `publish` replace no file; an equal one is fine."""
    storage.put(".hoodie/once", b"first", new=True)
    with pytest.raises(FileExistsError):
        storage.put(".hoodie/once", b"second", new=True)
    for name, content in (("same", b"first"), ("other", b"secnd")):
        Path(storage.root, name).write_bytes(content)
    storage.publish("same", ".hoodie/once")
    storage.publish("same", ".hoodie/again")
    with pytest.raises(FileExistsError):
        storage.publish("other", ".hoodie/once")
    assert read_bytes(storage, ".hoodie/once") == read_bytes(storage, ".hoodie/again") == b"first"
    assert scratch(storage) == []


@pytest.mark.parametrize("how", ["before", "after", "torn", "interrupt", "error"])
def test_a_batch_is_all_or_nothing_without_links(tmp_path: Path, how: str) -> None:
    """After a failure at any operation readers see whole commits; a new process gives the model."""
    source = make(tmp_path / "source")
    live(opened(source, links=False), 1)
    no_links = partial(opened, links=False)
    faults = {"code": errno.ENOSPC, "raises": OSError, "process": no_links}
    for root, _ in each_fault(source, runs(2), how, at_least=20, **faults):
        assert_whole_prefix(root)
        live(no_links(root), 2)
        assert without_meta(Table.open(root).to_arrow()) == MODELS[2]
        assert_at_rest(root)


@pytest.mark.parametrize("torn", [b"", b'{"partitionToWri', b"\0" * 100])
def test_a_torn_completed_file_of_ours_loses_no_row(tmp_path: Path, torn: bytes) -> None:
    """It is refused; moved away, as the error says, it is written from the prepared record."""
    root = make(tmp_path / "t")
    live(opened(root), 1, commit_on="checkpoint")
    steps = 0
    for crashed, _ in each_fault(root, runs(2, commit_on="checkpoint"), "before"):
        pending = [n for n in timeline_names(crashed) if n.endswith(".commit.requested")]
        time17 = max(pending)[:17]
        records = list((crashed / ".hoodie/.hoodie_nb/prepared").glob("*.json"))
        done = crashed / f".hoodie/{time17}.commit"
        if records and not done.exists():
            steps += 1
            done.write_bytes(torn)
            for use in (Table.to_arrow, lambda table: live(opened(table.path))):
                with pytest.raises(InvalidTable, match=f"{time17}.commit is not a readable"):
                    use(Table.open(crashed))
            published = crashed.glob(f"*/*_{time17}.parquet")
            for path in (*crashed.glob(f".hoodie/{time17}*"), *published):
                path.unlink()
            live(opened(crashed))
            assert_finished(crashed)
    assert steps > 3


def test_a_torn_completed_file_of_another_stays_an_error(tmp_path: Path) -> None:
    """A commit without a prepared record is not overwritten."""
    root = make(tmp_path / "t")
    live(opened(root), 2)
    done = root / ".hoodie" / max(n for n in timeline_names(root) if n.endswith(".commit"))
    done.write_bytes(done.read_bytes()[:100])
    before = done.read_bytes()
    with pytest.raises(InvalidTable, match="is not a readable commit"):
        live(opened(root))
    assert done.read_bytes() == before
