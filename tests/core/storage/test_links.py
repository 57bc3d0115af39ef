"""Links inside a table of unknown origin: nothing is written or deleted at their targets."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lives import MODELS, live, make, opened
from tables import tree, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import create_empty

OURS = ".hoodie/.hoodie_nb"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The workload's table with two batches in it."""
    live(opened(make(tmp_path / "t")), 2)
    return tmp_path / "t"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the table with files that look like ours."""
    folder = tmp_path / "outside"
    (folder / "20260101000001001-abc").mkdir(parents=True)
    (folder / "20260101000001001-abc" / "precious").write_text("precious")
    (folder / "precious").write_text("precious")
    return folder


FOLDERS = [".hoodie/.temp", f"{OURS}/staged", f"{OURS}/tmp", f"{OURS}/index", f"{OURS}/prepared"]
FOLDERS += [f"{OURS}/progress", f"{OURS}/sealed", OURS, "par1"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_written_or_deleted_where_a_link_leads(
    root: Path, outside: Path, folder: str
) -> None:
    """If any folder of the table is a link to the outside, a write changes nothing there."""
    if (root / folder).exists():
        shutil.copytree(root / folder, outside, dirs_exist_ok=True)
        shutil.rmtree(root / folder)
    (root / folder).symlink_to(outside)
    before = tree(outside)
    cache = folder == f"{OURS}/index"
    try:
        live(opened(root))
        refused = False
    except InvalidTable as error:
        refused = True
        assert "is a link" in str(error)
        assert folder in str(error)
    assert tree(outside) == before
    assert refused != cache


WRITES: dict[str, Callable[[LocalStorage, str], object]] = {
    "put new": lambda storage, path: storage.put(path, b"x", new=True),
    "put": lambda storage, path: storage.put(path, b"x"),
    "create empty": create_empty,
    "make_folder": LocalStorage.make_folder,
    "open_new": LocalStorage.open_new,
    "remove": LocalStorage.remove,
    "remove tree": lambda storage, path: storage.remove(path, tree=True),
    "publish": lambda storage, path: storage.publish(".hoodie/hoodie.properties", path),
    "publish from": lambda storage, path: storage.publish(path, "par0/new"),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("deep", ["", "a/b/"])
def test_every_way_to_write_refuses_a_link_on_its_way(
    root: Path, outside: Path, name: str, deep: str
) -> None:
    """A link anywhere in the path is refused by name by everything that writes or deletes."""
    (outside / deep).mkdir(parents=True, exist_ok=True)
    (root / ".hoodie/link").symlink_to(outside)
    before = tree(outside)
    for last in ("precious", "new"):
        with pytest.raises(InvalidTable, match=r"\.hoodie/link' is a link"):
            WRITES[name](LocalStorage(root), f".hoodie/link/{deep}{last}")
    assert tree(outside) == before


def test_a_link_as_the_last_name_is_never_followed(root: Path, outside: Path) -> None:
    """A link in place of a file is replaced, deleted or refused; its target stays."""
    storage, link, before = LocalStorage(root), root / ".hoodie/link", tree(outside)
    link.symlink_to(outside / "precious")
    with pytest.raises(FileExistsError):
        storage.put(".hoodie/link", b"x", new=True)
    with pytest.raises(FileExistsError):
        storage.open_new(".hoodie/link")
    create_empty(storage, ".hoodie/link")
    storage.put(".hoodie/link", b"x")
    assert not link.is_symlink()
    for tree_too in (False, True):
        link.unlink(missing_ok=True)
        link.symlink_to(outside)
        storage.remove(".hoodie/link", tree=tree_too)
        assert not link.is_symlink()
    assert tree(outside) == before


@pytest.mark.parametrize("target", [".", "..", "par0", "loop", "nowhere"])
@pytest.mark.parametrize("folder", ["", "par0", ".hoodie", ".hoodie/.temp"])
def test_a_circular_link_leaves_the_table_readable_and_writable(
    root: Path, folder: str, target: str
) -> None:
    """Links into the table, circular or broken links are not partitions and have no effect."""
    (root / folder).mkdir(exist_ok=True)
    outer = (folder, target) == ("", "..")  # this one would point outside the table
    (root / folder / "loop").symlink_to(root if outer else target)
    assert without_meta(Table.open(root).to_arrow()) == MODELS[2]
    live(opened(root))
    assert without_meta(Table.open(root).to_arrow()) == MODELS[-1]


def test_a_partition_that_is_a_link_to_elsewhere_is_refused(root: Path, outside: Path) -> None:
    """The rows of a linked partition are not silently ignored: the table is refused by name."""
    shutil.copytree(root / "par0", outside / "par0")
    shutil.rmtree(root / "par0")
    (root / "par0").symlink_to(outside / "par0")
    with pytest.raises(InvalidTable, match=r"'par0' is a link.*outside the table.*by the folder"):
        Table.open(root).to_arrow()


@contextmanager
def unprivileged_user() -> Iterator[None]:
    """Run as a user who is not root, so that permissions apply."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("damage", ["unreadable", "file"])
def test_a_folder_that_cannot_be_listed_is_named(root: Path, tmp_path: Path, damage: str) -> None:
    """A folder without permission, or a file in its place, is an error, not an empty folder."""
    for folder in (tmp_path, tmp_path.parent):
        folder.chmod(0o755)
    if damage == "file":
        shutil.rmtree(root / ".hoodie/.hoodie_nb/progress")
        (root / ".hoodie/.hoodie_nb/progress").write_text("")
        with pytest.raises(InvalidTable, match=r"progress' .*cannot be listed"):
            LocalStorage(root).list_folder(".hoodie/.hoodie_nb/progress")
        return
    (root / "par0").chmod(0)
    with unprivileged_user(), pytest.raises(InvalidTable, match=r"'par0' .*cannot be listed"):
        Table.open(root).to_arrow()
    (root / "par0").chmod(0o755)  # else only root can remove it
