"""Every damage that readers would hide is found: each kind of file, damaged in each way.

A damage is hidden if hudi-rs reads other rows than the table had, without an error, while `fsck`
finds nothing. Those that an engine makes on purpose, in a whole commit of its own, are none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damages import (
    LATER,
    again,
    at,
    base,
    build,
    column,
    commits,
    copied,
    copied_partition,
    cut,
    edit,
    forget,
    log,
    meta,
    other_keys,
    properties,
    quarantine,
    record,
    replaced_and_lost,
    savepoint,
    stored,
)
from tables import hudi_rows, without_meta
from test_fsck_fixes import rows

from hoodie_nb import Table
from hoodie_nb.errors import HoodieError

HOW = ("missing", "cut", "changed", "extra", "older")
METADATA, PARTITION = ".hoodie_partition_metadata", "_hoodie_partition_path"
OLD = "20000101000000000"
Plant = Callable[[Path], object]
Cell = tuple[Plant, str] | str  # what plants it, and the code of the finding; or why there is none


def older(file: Path, source: Path) -> None:
    """Give a file the content of an older one."""
    file.write_bytes(source.read_bytes())


def fewer(file: Path, count: int) -> None:
    """Keep so many rows of a file, as another engine writes them."""
    stored(file, lambda found: found.slice(0, count))


def no_files(root: Path) -> None:
    """Let the newest commit name no file."""
    edit(root, -1, lambda content: content.update(partitionToWriteStats={}))


CACHE = "a cache with checksums: it is rebuilt"
SMALL: dict[str, dict[str, Cell]] = {
    "properties": {
        "missing": (lambda t: meta(t, "hoodie.properties").unlink(), "error"),
        "cut": (lambda t: meta(t, "hoodie.properties").write_text("a=b"), "error"),
        "changed": (
            lambda t: properties(t, "precombine.field=ts", "precombine.field=v"),
            "other-rules",
        ),
        "extra": "there is one name",
        "older": (lambda t: properties(t, "hoodie.table.precombine.field=ts\n", ""), "other-rules"),
    },
    "a requested file": {
        "missing": (lambda t: meta(t, f"{commits(t)[1].stem}.commit.requested").unlink(), ""),
        "cut": "it is empty",
        "changed": "no reader reads it",
        "extra": (lambda t: meta(t, f"{LATER}.commit.requested").touch(), "pending-instant"),
        "older": "it is empty",
    },
    "a completed file": {
        "missing": (lambda t: commits(t)[-1].unlink(), "lost-completed-file"),
        "cut": (lambda t: cut(commits(t)[1]), "unreadable-table"),
        "changed": (
            lambda t: edit(t, -1, lambda c: c.update(partitionToWriteStats={})),
            "unnamed-file",
        ),
        "extra": (
            lambda t: shutil.copy(commits(t)[0], meta(t, f"{LATER}.commit")),
            "unreadable-table",
        ),
        "older": (lambda t: older(commits(t)[1], commits(t)[0]), "unreadable-table"),
    },
    "all files of an instant": {
        "missing": (lambda t: forget(t, commits(t)[1]), "lost-commit"),
        "cut": (lambda t: [forget(t, c) for c in commits(t)], "lost-commit"),  # all instants
        "changed": "the completed file decides",
        "extra": (again, ""),
        "older": (replaced_and_lost, "lost-commit"),
    },
    "the newest base file": {
        "missing": (lambda t: base(t).unlink(), "lost-base-file"),
        "cut": (lambda t: cut(base(t)), "damaged-base-file"),
        "changed": (lambda t: fewer(base(t), 1), "damaged-base-file"),
        "extra": (lambda t: copied(t, at(commits(t)[1].stem)), "orphan-file"),
        "older": (lambda t: older(base(t), base(t, number=0)), "damaged-base-file"),
    },
    "an older base file": {
        "missing": (lambda t: base(t, number=0).unlink(), "lost-older-file"),
        "cut": (lambda t: cut(base(t, number=0)), "damaged-base-file"),
        "changed": "readers of its time refuse it",
        "extra": (lambda t: copied(t, at(OLD), to="x"), "duplicate-keys"),
        "older": (lambda t: copied(t, at(OLD)), "wrong-partition"),
    },
    "the rows of a base file": {
        "missing": (
            lambda t: stored(base(t), lambda found: found.slice(0, 0)),
            "damaged-base-file",
        ),
        "cut": (other_keys, "wrong-record-key"),
        "changed": (lambda t: stored(base(t), column("p", "y", "y")), "wrong-partition"),
        "extra": (lambda t: Table.open(t).insert(rows(("a", "x", 1))), "duplicate-keys"),
        "older": (
            lambda t: stored(base(t), column("_hoodie_partition_path", "y", "y")),
            "wrong-partition",
        ),
    },
    "partition metadata": {
        "missing": (lambda t: (t / "x" / METADATA).unlink(), "lost-partition-metadata"),
        "cut": (lambda t: (t / "x" / METADATA).write_bytes(b""), "damaged-partition-metadata"),
        "changed": (
            lambda t: (t / "x" / METADATA).write_text("partitionDepth=2"),
            "damaged-partition-metadata",
        ),
        "extra": (lambda t: copied_partition(t, marked=True), "orphan-file"),
        "older": (lambda t: (t / "q").mkdir() or shutil.copy(t / "x" / METADATA, t / "q"), ""),
    },
    "a savepoint": {
        "missing": (lambda t: savepoint(t, None), "pending-instant"),
        "cut": (lambda t: savepoint(t, b"Obj"), "damaged-savepoint"),
        "changed": (lambda t: savepoint(t, b""), "damaged-savepoint"),
        "extra": (
            lambda t: meta(t, f"{commits(t)[0].stem}.savepoint").touch(),
            "damaged-savepoint",
        ),
        "older": "it is never written again",
    },
    "our records": {
        "missing": "the position of the stream is refused: see docs/failures.md",
        "cut": (lambda t: record(t, "prepared", f"{LATER}.0.json"), "unreadable-record"),
        "changed": (lambda t: record(t, "sealed", "000000000001-ab.json"), "unreadable-record"),
        "extra": (lambda t: record(t, "progress", "query.json"), "unreadable-record"),
        "older": "a position in the past is refused, or skipped: see docs/failures.md",
    },
    "options and rules": {
        "missing": (lambda t: meta(t, ".hoodie_nb/rules.json").unlink(), ""),
        "cut": (lambda t: cut(meta(t, ".hoodie_nb/options.json")), "unreadable-record"),
        "changed": (lambda t: meta(t, ".hoodie_nb/rules.json").write_text("{}"), "other-rules"),
        "extra": "there is one name each",
        "older": (lambda t: properties(t, "fields=p\n", "fields=id\n"), "other-rules"),
    },
    "refused rows": {
        "missing": "they may be deleted by hand",
        "cut": (quarantine, "damaged-quarantine"),
        "changed": "JSON text of any form",
        "extra": "without a commit it does not count",
        "older": "it is never written again",
    },
    "the index": dict.fromkeys(HOW, CACHE)
    | {"missing": (lambda t: shutil.rmtree(meta(t, ".hoodie_nb/index")), "")},
}
ARCHIVED: dict[str, dict[str, Cell]] = {
    "the base file of an archived commit": {
        "missing": (lambda t: base(t).unlink(), "lost-base-file"),
        "cut": (lambda t: cut(base(t)), "damaged-base-file"),
        "changed": (lambda t: fewer(base(t), 1), "damaged-base-file"),
        "extra": (lambda t: copied(t, ""), "wrong-partition"),
        "older": (lambda t: base(t).rename(t / "y" / base(t).name), "wrong-partition"),
    },
    "an archived partition": {
        "missing": (lambda t: shutil.rmtree(t / "x"), "lost-base-file"),
        "cut": (lambda t: base(t, "y").unlink(), "lost-base-file"),
        "changed": (lambda t: copied_partition(t, marked=False), "copied-partition"),
        "extra": (lambda t: copied_partition(t, marked=True), "wrong-partition"),
        "older": "that of its files",
    },
    "the archive": {
        "missing": (lambda t: log(t).unlink(), ""),
        "cut": (lambda t: cut(log(t)), "damaged-archive"),
        "changed": (lambda t: log(t).write_bytes(b"#HUDI#"), "damaged-archive"),
        "extra": "an instant counts once",
        "older": "it is only ever added to",
    },
}
PLANTED = [
    pytest.param(archived, plant, id=f"{kind}: {how}")
    for archived, table in ((False, SMALL), (True, ARCHIVED))
    for kind, cells in table.items()
    for how, plant in cells.items()
    if not isinstance(plant, str)
]


@pytest.fixture(scope="module")
def sound(new_folder: Callable[[], Path]) -> dict[bool, Path]:
    """Return the folders of the small table and of the one with archived commits."""
    return {
        is_old: Path(build(new_folder() / "t", archived=is_old).path) for is_old in (False, True)
    }


def test_each_kind_of_file_is_damaged_in_each_way() -> None:
    """The inventory has no empty cell."""
    assert all(tuple(cells) == HOW for cells in (SMALL | ARCHIVED).values())
    assert len(PLANTED) > 50


@pytest.mark.parametrize(("archived", "cell"), PLANTED)
def test_no_damage_is_hidden(
    sound: dict[bool, Path], tmp_path: Path, archived: bool, cell: tuple[Plant, str]
) -> None:
    """It is found by its code; without a finding hudi-rs and our reader show the right rows."""
    (plant, code), root = cell, Path(shutil.copytree(sound[archived], tmp_path / "t"))
    plant(root)
    if code == "error":
        with pytest.raises(HoodieError, match=r"hoodie\.properties"):
            Table.open(root)
        return
    codes = [finding.code for finding in Table.open(root).fsck()]
    assert code in codes if code else codes == []
    if not code:
        right = hudi_rows(sound[archived])
        assert hudi_rows(root) == without_meta(Table.open(root).to_arrow()) == right
