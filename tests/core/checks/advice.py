"""Damages of a table that an error answers with advice, and what follows the advice literally.

`test_advice` has the cases.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import active, archive_elsewhere, archived, log_elsewhere, plant
from damages import FEW, base, commits, cut, edit, forget, log, meta, properties
from test_fsck_fixes import SCHEMA, rows

from hoodie_nb import Table, failpoints
from hoodie_nb.errors import HoodieError, InvalidTable

Root = Path
Act = Callable[[Root], object]
Use = Callable[[Table], object]
Follow = Callable[[Root, str], object]
Rows = tuple[tuple[str, str, int], ...]
FIRST: Rows = (("a", "x", 1), ("b", "x", 1), ("c", "y", 1))
SECOND: Rows = (("a", "x", 2), *FIRST[1:])
HELD: Rows = (*SECOND, ("d", "y", 3))
OLD: Rows = (*HELD, ("z", "z", 11))
CALL = re.compile(r"call (Table\.open\(path\)\.\w+\([^)]*\))")
KEYS = {"schema": SCHEMA, "record_key": "id", "partition_by": "p", "ordering": "ts"}
PENDING = {"pending-instant", "unfinished-file", "leftover"}  # the next write ends them


def upsert(table: Table) -> object:
    """Write into both partitions."""
    return table.upsert(rows(("w", "x", 20), ("w", "y", 20)))


def time_of(root: Root, number: int) -> str:
    """Return the time of a commit on the timeline."""
    return commits(root)[number].name[:17]


def restores(number: int) -> Use:
    """Return the restore to a commit."""
    return lambda table: table.restore(time_of(Path(table.path), number))


# --- what the errors advise -----------------------------------------------------------------------


def backup(root: Root, text: str) -> None:
    """Restore from a backup."""
    assert "backup" in text or "estore" in text
    shutil.copytree(root.parent / "backup", root, dirs_exist_ok=True)


def call(root: Root, text: str) -> None:
    """Make the call that an error names."""
    found = CALL.search(text)
    assert found, text
    eval(found[1], {"Table": Table, "path": root})


def moved(root: Root, *files: Path) -> None:
    """Move files or folders out of the table."""
    assert files
    to = root.parent / "moved"
    to.mkdir(exist_ok=True)
    for file in files:
        os.rename(file, os.fsencode(to) + b"/" + os.fsencode(file.parent.name + "-" + file.name))


def move_instant(root: Root, text: str) -> None:
    """Move all files of the instant that an error names out of the table."""
    (time17,) = {*re.findall(r"\*_(\d{17})\.parquet", text)}
    assert f".hoodie/{time17}" in text and "out of the table" in text
    moved(root, *root.glob(f".hoodie/{time17}*"), *root.glob(f"*/*_{time17}.parquet"))


def move_of_commit(root: Root, text: str) -> None:
    """Move all base files of the commit of the named file out of the table."""
    (time17,) = re.findall(r"_(\d{17})\.parquet belongs", text)
    moved(root, *root.glob(f"*/*_{time17}.parquet"))


def move_base_files(root: Root, _: str) -> None:
    """Move all base files out of the table."""
    moved(root, *root.glob("*/*.parquet"))


def move_one_of_two(root: Root, text: str) -> None:
    """Move the second of two files of one group and instant out of the table."""
    (found,) = re.findall(r"instant, (\S+) and (\S+), and", text)
    moved(root, root / found[1])


def move_meta(root: Root, text: str) -> None:
    """Move the file of the timeline that an error names away."""
    (name,) = re.findall(r"\.hoodie/(\d+\.\S+) has a time", text)
    moved(root, meta(root, name))


def drop_pending(root: Root, text: str) -> None:
    """Delete the requested and the inflight file of a pending instant."""
    (found,) = {*re.findall(r"\.hoodie/(\d{17}\.\w+)\.requested", text)}
    assert "delete its .requested and .inflight files" in text
    for state in ("requested", "inflight"):
        meta(root, f"{found}.{state}").unlink(missing_ok=True)


def drop_and_roll_back(root: Root, text: str) -> None:
    """Delete the files of a pending rollback, and call it again, as far as that is needed."""
    drop_pending(root, text)
    assert "called by hand must be called again" in text
    try:
        Table.open(root).rollback()
    except InvalidTable as error:
        move_instant(root, str(error))


def deleted(name: str) -> Follow:
    """Return the deletion of a file that the error names."""

    def delete(root: Root, text: str) -> None:
        assert name in text
        path = meta(root, name)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return delete


def then(*uses: Use) -> Follow:
    """Return calls that an error names in words."""

    def follow(root: Root, _: str) -> None:
        for use in uses:
            use(Table.open(root))

    return follow


def without_savepoint(number: int) -> Use:
    """Return the deletion of the savepoint of a commit."""
    return lambda table: table.delete_savepoint(time_of(Path(table.path), number))


def saves(number: int, comment: str = "") -> Use:
    """Return the creation of a savepoint."""
    return lambda table: table.savepoint(time_of(Path(table.path), number), comment=comment)


# --- damages --------------------------------------------------------------------------------------


def keep(root: Root) -> None:
    """Make a backup of the table as it is."""
    shutil.rmtree(root.parent / "backup", ignore_errors=True)
    shutil.copytree(root, root.parent / "backup")


def stopped(points: str, action: Use) -> Act:
    """Return a damage: an action stops at failpoints, and its plan is damaged."""

    def damage(root: Root) -> None:
        failpoints.arm(";".join(f"{point}=raise:EIO" for point in points.split()))
        try:
            with pytest.raises((HoodieError, OSError)):
                action(Table.open(root))
        finally:
            failpoints.arm("")
        keep(root)
        plan = max(f for f in root.glob(".hoodie/*.requested") if f.stat().st_size)
        plan.write_bytes(b"junk")

    return damage


def archived_beyond(root: Root) -> None:
    """Let Hudi archive the second commit beyond the savepoint of the first, and delete that."""
    Table.open(root).savepoint(time_of(root, 0))
    archive_elsewhere(root, time_of(root, 1))
    for file in root.glob(".hoodie/*.savepoint*"):
        file.unlink()


def archive_first(root: Root, text: str) -> None:
    """Let Hudi archive the commit that the error names."""
    (time17,) = re.findall(r"let Hudi archive (\d{17})", text)
    archive_elsewhere(root, time17)


def saved_and_damaged(root: Root) -> None:
    """Damage the archive of a table whose first commit has a savepoint."""
    Table.open(root).savepoint(time_of(root, 0))
    log_elsewhere(root, "20200101000000000")
    keep(root)
    cut(log(root))


def twice(root: Root) -> None:
    """Give an archived commit two files of one group."""
    file = base(root, "y")
    shutil.copy(file, file.with_name(re.sub(r"_[^_]+_", "_9-9-9_", file.name)))


def both_properties(old: str, new: str) -> Act:
    """Return a damage of the properties and their backup."""

    def damage(root: Root) -> None:
        properties(root, old, new)
        meta(root, "hoodie.properties.backup").unlink(missing_ok=True)

    return damage


def linked(root: Root) -> None:
    """Replace a partition by a link to its folder elsewhere."""
    elsewhere = root.parent / "elsewhere"
    (root / "x").rename(elsewhere)
    (root / "x").symlink_to(elsewhere)


def unlinked(root: Root, text: str) -> None:
    """Replace the link by the folder itself."""
    assert "replace it by the folder" in text
    (root / "x").unlink()
    (root.parent / "elsewhere").rename(root / "x")


def other_link(root: Root) -> None:
    """Put a link to a folder elsewhere into the table."""
    shutil.copytree(root / "x", root.parent / "elsewhere")
    (root / "q").symlink_to(root.parent / "elsewhere")


def in_place_of_the_lock(put: Act) -> Act:
    """Return a damage: something that cannot be locked is in the lock's place."""

    def damage(root: Root) -> None:
        meta(root, ".hoodie_nb/lock").unlink()
        put(meta(root, ".hoodie_nb/lock"))

    return damage


def not_text(root: Root) -> None:
    """Rename a partition to bytes that are no text."""
    os.rename(root / "x", os.fsencode(root) + b"/\xff")


def renamed(root: Root, text: str) -> None:
    """Give the folder the name that its rows have."""
    assert "give it the name that its rows have" in text
    os.rename(os.fsencode(root) + b"/\xff", root / "x")


def not_text_copy(root: Root) -> None:
    """Copy a partition to a name that is no text."""
    shutil.copytree(os.fsencode(root / "x"), os.fsencode(root) + b"/\xff")


def compacted(root: Root) -> None:
    """Let the newest commit be one that only merges files."""
    options = {"hoodie.parquet.small.file.limit": 1 << 20}
    table = Table.create(root, if_exists="open", options=options, **KEYS)
    table.cluster()
    assert "cluster" in list(table.history()["operation"])


def saved_beyond(root: Root) -> None:
    """Let Hudi archive the second commit beyond the savepoint of the first."""
    Table.open(root).savepoint(time_of(root, 0))
    archive_elsewhere(root, time_of(root, 1))


def delete_with_hudi(root: Root, text: str) -> None:
    """Delete the savepoint with Hudi, and let Hudi archive."""
    assert "with Hudi, and let Hudi archive" in text
    first = time_of(root, 0)
    for file in root.glob(".hoodie/*.savepoint*"):
        file.unlink()
    archive_elsewhere(root, first)


def few(root: Root) -> Table:
    """Let the table archive all but two commits; return it."""
    keep(root)
    return Table.create(root, if_exists="open", options=FEW, **KEYS)


def forgotten(root: Root) -> None:
    """Lose all files of a commit that is newer than archived ones."""
    few(root)
    for value in (4, 5):
        Table.open(root).upsert(rows(("e", "y", value)))
    keep(root)
    forget(root, commits(root)[1])


def damaged_before_archiving(root: Root) -> None:
    """Damage the archive when there is a file of no commit."""
    few(root).archive()
    Table.open(root).upsert(rows(("e", "y", 5)))
    plant(root, time_of(root, 0))
    keep(root)
    cut(log(root))


def archive_then(follow: Follow) -> Follow:
    """Return what follows the advice, and archives."""

    def both(root: Root, text: str) -> None:
        follow(root, text)
        Table.open(root).archive()
        assert archived(root)

    return both


def as_fsck_says(root: Root, text: str) -> None:
    """Restore what fsck names from a backup."""
    assert "`fsck` says what to do" in text
    assert any("from a backup" in finding.fix for finding in Table.open(root).fsck())
    backup(root, "backup")


def unnamed(root: Root) -> None:
    """Let the second commit, of another engine, not name its file."""
    edit(root, 1, lambda content: content.update(partitionToWriteStats={}))


def move_newer(root: Root, text: str) -> None:
    """Move the file that no commit names out of the table."""
    (name,) = re.findall(r"is older than (\S+), which no commit names", text)
    assert "or move that file out of the table" in text
    moved(root, root / name)


def one_commit_left(root: Root) -> None:
    """Let another engine archive all commits but the last."""
    archive_elsewhere(root, *active(root)[:-1])
