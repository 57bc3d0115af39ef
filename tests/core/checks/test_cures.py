"""The cure of each finding works: each code is planted, its cure is applied as its text says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from damages import (
    FEW,
    LATER,
    at,
    base,
    build,
    column,
    commits,
    copied,
    copied_partition,
    cut,
    forget,
    log,
    meta,
    other_keys,
    properties,
    quarantine,
    savepoint,
    set_back,
    stored,
)
from tables import hudi_rows, without_meta
from test_damage_inventory import METADATA, no_files, older
from test_fsck_fixes import SCHEMA, rows

from hoodie_nb import Table
from hoodie_nb.checks.findings import STAKES, Finding

Root = Path
Plant = Callable[[Root], object]
Cure = Callable[[Root, Finding], object]


@dataclass(frozen=True)
class Case:
    """A damage, words of the cure that its finding names, and that cure (None: a backup).

    `changes`: the rows afterwards, if they are not those of before.
    """

    code: str
    plant: Plant
    words: str
    cure: Cure | None = None
    archived: bool = False
    changes: tuple[tuple[str, str, int], ...] | None = None


KEYS = {"schema": SCHEMA, "record_key": "id", "partition_by": "p", "ordering": "ts"}
SMALL = (("a", "x", 2), ("b", "x", 1), ("c", "y", 1), ("d", "y", 3))
BACKUP = "from a backup"
CALL = re.compile(r"call (Table\.open\(path\)\.\w+\([^)]*\))")


def call(root: Root, finding: Finding) -> None:
    """Make the call that a cure names."""
    found = CALL.search(finding.fix)
    assert found, finding.fix
    eval(found[1], {"Table": Table, "path": root})


def paths(root: Root, finding: Finding) -> list[Path]:
    """Return the files and folders that a finding names."""
    words = re.findall(r"[\w./-]+", finding.what.removeprefix(str(root)))
    named = (root / word.lstrip("/") for word in words if "/" in word or word == "copy")
    return [path for path in named if path.exists()]


def delete(root: Root, finding: Finding) -> None:
    """Delete the file that a finding names."""
    (path,) = paths(root, finding)[:1]
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def move_out(root: Root, finding: Finding) -> Path:
    """Move what a finding names out of the table."""
    (path,) = paths(root, finding)[:1]
    return Path(shutil.move(path, root.parent / f"moved-{path.name}"))


def move_and_call(root: Root, finding: Finding) -> None:
    """Move a file out of the table, then make the call that the cure names."""
    move_out(root, finding)
    call(root, finding)


def delete_and_call(root: Root, finding: Finding) -> None:
    """Delete a file, then make the call that the cure names."""
    delete(root, finding)
    call(root, finding)


def move_and_upsert(root: Root, finding: Finding) -> None:
    """Move a file out, accept its loss, and upsert its rows."""
    moved = pq.read_table(move_out(root, finding))
    Table.open(root).fsck(repair="accept_loss")
    own = [name for name in moved.column_names if not name.startswith("_hoodie")]
    Table.open(root).upsert(moved.select(own))


def write_again_and_delete(root: Root, finding: Finding) -> None:
    """Write the rows of a hidden commit again, then delete its file."""
    Table.open(root).upsert(rows(("a", "x", 2)))
    delete(root, finding)


def move_instant(root: Root, _: Finding) -> None:
    """Move what a commit that was removed on purpose has left out of the table."""
    time17, to = newest(root), root.parent / "moved"
    to.mkdir()
    for file in [*root.glob(f".hoodie/{time17}.*"), *root.glob(f"*/*_{time17}.parquet")]:
        shutil.move(file, to / f"{file.parent.name}-{file.name}")


def newest(root: Root) -> str:
    """Return the newest time of a base file."""
    return max(file.stem[-17:] for file in root.glob("*/*.parquet"))


def late(root: Root) -> None:
    """Complete a commit after it was rolled back."""
    Table.open(root).upsert(rows(("n", "n", 1)))
    done = commits(root)[-1]
    content = done.read_bytes()
    Table.open(root).rollback()
    done.write_bytes(content)
    shutil.rmtree(meta(root, ".hoodie_nb/index"))


def inner(root: Root) -> None:
    """Move another table inside."""
    build(root.parent / "inner")
    shutil.move(root.parent / "inner", root / "x" / "inner")


def empty_plan(root: Root) -> None:
    """Leave a pending clean whose plan cannot be read."""
    for state in ("requested", "inflight"):
        meta(root, f"{LATER}.clean.{state}").write_bytes(b"junk")


def delete_plan(root: Root, _: Finding) -> None:
    """Delete the two files of a pending instant."""
    for file in root.glob(f".hoodie/{LATER}.*"):
        file.unlink()


def folder(root: Root, name: str) -> None:
    """Create a folder with a file below `.hoodie`."""
    meta(root, name).mkdir(parents=True)
    (meta(root, name) / "file").touch()


OTHERS = tuple(row for row in SMALL if row[1] != "x")
CASES = [
    Case(
        "copied-partition",
        lambda t: copied_partition(t, marked=False),
        "move it out",
        move_out,
        True,
    ),
    Case("damaged-archive", lambda t: cut(log(t)), BACKUP, None, True),
    Case("damaged-archive", lambda t: cut(log(t)), "without one delete it", delete, True),
    Case("damaged-base-file", lambda t: cut(base(t)), BACKUP),
    Case(
        "damaged-base-file",
        lambda t: cut(base(t)),
        "move it out of the table, then call",
        move_and_call,
        changes=(("a", "x", 1), *SMALL[1:]),
    ),
    Case(
        "damaged-partition-metadata",
        lambda t: (t / "x" / METADATA).write_text(""),
        "delete that file",
        delete_and_call,
    ),
    Case("damaged-quarantine", quarantine, "delete it to give", delete),
    Case("damaged-savepoint", lambda t: savepoint(t, b""), "delete_savepoint", call),
    Case(
        "duplicate-keys", lambda t: Table.open(t).insert(rows(("c", "y", 1))), "deduplicate", call
    ),
    Case("foreign-file", lambda t: copied(t, "other.parquet", to="x"), "move it out", move_out),
    Case(
        "foreign-pending-instant",
        lambda t: meta(t, f"{LATER}.compaction.requested").touch(),
        "complete or cancel it",
        delete_plan,
    ),
    Case("hidden-slice", set_back, "commit again; then delete that file", write_again_and_delete),
    Case("late-completed-file", late, "delete that file", delete),
    Case("leftover", lambda t: folder(t, ".temp/1"), "repair=True", call),
    Case(
        "leftover-metadata-table", lambda t: folder(t, "metadata"), "or delete the folder", delete
    ),
    Case("lost-base-file", lambda t: base(t).unlink(), BACKUP),
    Case("lost-base-file", lambda t: base(t).unlink(), BACKUP, None, True),
    Case(
        "lost-base-file",
        lambda t: base(t).unlink(),
        "accept_loss",
        call,
        changes=(("a", "x", 1), *SMALL[1:]),
    ),
    Case(
        "lost-base-file",
        lambda t: base(t).unlink(),
        "accept_loss",
        call,
        True,
        (*OTHERS, ("z", "z", 11)),
    ),
    Case("lost-commit", lambda t: forget(t, commits(t)[1]), BACKUP),
    Case("lost-completed-file", lambda t: commits(t)[-1].unlink(), BACKUP),
    Case(
        "lost-completed-file",
        lambda t: commits(t)[-1].unlink(),
        "move the other files",
        move_instant,
        changes=SMALL[:-1],
    ),
    Case("lost-older-file", lambda t: base(t, number=0).unlink(), BACKUP),
    Case("lost-partition-metadata", lambda t: (t / "x" / METADATA).unlink(), "repair=True", call),
    Case("orphan-file", lambda t: copied(t, at(commits(t)[-1].stem)), "delete it", delete),
    Case("other-rules", lambda t: properties(t, "field=ts\n", "field=v\n"), BACKUP),
    Case(
        "other-rules",
        lambda t: properties(t, "field=ts\n", "field=v\n"),
        "on purpose, delete",
        lambda t, _: meta(t, ".hoodie_nb/rules.json").unlink(),
    ),
    Case(
        "other-table",
        inner,
        "move that table out",
        lambda t, _: shutil.move(t / "x/inner", t.parent),
    ),
    Case(
        "pending-instant",
        lambda t: meta(t, f"{LATER}.commit.requested").touch(),
        "repair=True",
        call,
    ),
    Case("unnamed-file", no_files, BACKUP),
    Case("unnamed-file", no_files, "move it out", move_out, changes=SMALL[:-1]),
    Case("unreadable-plan", empty_plan, ".requested and .inflight", delete_plan),
    Case("unreadable-record", lambda t: cut(meta(t, ".hoodie_nb/options.json")), BACKUP),
    Case("unreadable-table", lambda t: older(commits(t)[1], commits(t)[0]), "do what the text"),
    Case("wrong-partition", lambda t: copied(t, "", to="y"), "move it out", move_out, True),
    Case(
        "wrong-partition",
        lambda t: stored(base(t), column("_hoodie_partition_path", "y", "y")),
        BACKUP,
    ),
    Case(
        "wrong-partition",
        lambda t: stored(base(t), column("_hoodie_partition_path", "y", "y")),
        "upsert the rows of the moved file",
        move_and_upsert,
    ),
    Case("wrong-record-key", other_keys, "upsert the rows of the moved file", move_and_upsert),
]
ELSEWHERE = {
    **dict.fromkeys(("damaged-log", "lost-log", "torn-log"), "checks/test_log_findings.py"),
    "unreadable-log": "checks/test_log_findings.py",
    "late-archived-file": "lock/test_late_completed.py",
    "replaced-file-group": "view/test_replaced.py",
    "second-completed-file": "checks/test_cures.py",
    "unfinished-file": "checks/test_fsck_repair.py",
    "unreadable-base-file": "storage/test_permissions.py",
    "wrong-key-index": "checks/test_fsck_fixes.py",
}


@pytest.fixture(scope="module")
def sound(new_folder: Callable[[], Path]) -> dict[bool, Path]:
    """Return the folders of the small table and of the one with archived commits."""
    found = {is_old: build(new_folder() / "t", archived=is_old) for is_old in (False, True)}
    return {is_old: Path(table.path) for is_old, table in found.items()}


def test_each_code_has_a_case() -> None:
    """Those that need another table are cured where they are tested."""
    assert {case.code for case in CASES} | ELSEWHERE.keys() == STAKES.keys()
    assert all((Path(__file__).parents[1] / name).exists() for name in ELSEWHERE.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}: {case.words}")
def test_the_cure_works(sound: dict[bool, Path], tmp_path: Path, case: Case) -> None:
    """Afterwards nothing is found, and the rows are right, or those that the cure promises."""
    root = Path(shutil.copytree(sound[case.archived], tmp_path / "t"))
    case.plant(root)
    found = [f for f in Table.open(root).fsck() if f.code == case.code]
    assert found and all(case.words in f"{f.what} {f.fix}" for f in found)
    if case.cure is None:
        shutil.copytree(sound[case.archived], root, dirs_exist_ok=True)
    else:
        case.cure(root, found[0])
    table = Table.open(root)
    assert [str(finding) for finding in table.fsck()] == []
    expected = hudi_rows(sound[case.archived])
    if case.changes is not None:
        expected = without_meta(rows(*case.changes))
    assert hudi_rows(root) == without_meta(table.to_arrow()) == expected
    table.upsert(rows(("a", "x", 20), ("w", "y", 20)))
    assert [str(finding) for finding in Table.open(root).fsck()] == []


def test_a_hidden_commit_is_named_until_it_is_archived(tmp_path: Path) -> None:
    """Hudi shows older rows; the finding names commit, file and newer slice, also after a clean."""
    root = Path(build(tmp_path / "t").path)
    newer = commits(root)[0].stem
    set_back(root)
    assert hudi_rows(root) == without_meta(rows(("a", "x", 1), *SMALL[1:]))
    hidden, set_behind = commits(root)[0].stem, base(root, number=0)
    (before,) = Table.open(root).fsck()
    assert f"commit {hidden} wrote x/{set_behind.name} upon the slice of {newer}" in before.what
    assert "time zone of before" in before.fix and before.at_stake == "rows hidden"
    Table.open(root).clean(commits=1)
    assert not set_behind.exists()
    (cleaned,) = Table.open(root).fsck()
    assert cleaned.what == before.what and "ends when the commit is archived" in cleaned.fix
    table = Table.create(root, if_exists="open", options=FEW, **KEYS)
    for ts in (4, 5, 6):
        table.upsert(rows(("a", "x", ts)))
    assert hidden not in {commit.stem for commit in commits(root)} and table.fsck() == []
    assert hudi_rows(root) == without_meta(rows(("a", "x", 6), *SMALL[1:]))


def second_of(done: Path, later_ms: int = 1) -> Path:
    """Complete a commit of version 9 a second time; return the new file."""
    time17, _, completed = done.stem.partition("_")
    second = done.with_name(f"{time17}_{int(completed) + later_ms}.commit")
    return Path(shutil.copy(done, second))


def completed_twice(root: Path) -> Path:
    """Make a table whose second commit has two completed files; return the second one."""
    table = Table.create(root, table_version=9, **KEYS)
    for ts in (1, 2):
        table.upsert(rows(("a", "x", ts)))
    return second_of(max(root.glob(".hoodie/timeline/*.commit")))


def test_a_second_completed_file_is_deleted(tmp_path: Path) -> None:
    """Its commit counts once, also before that; the files are of version 9."""
    root = tmp_path / "t"
    second = completed_twice(root)
    (finding,) = Table.open(root).fsck()
    assert finding.code == "second-completed-file" and second.name in finding.what
    assert hudi_rows(root) == without_meta(rows(("a", "x", 2)))
    delete(root, finding)
    assert not second.exists() and Table.open(root).fsck() == []
    Table.open(root).upsert(rows(("a", "x", 3)))
    assert hudi_rows(root) == without_meta(rows(("a", "x", 3)))
    assert len(Table.open(root).history()) == 3 and Table.open(root).fsck() == []


def test_a_rollback_undoes_a_commit_with_a_second_completed_file(tmp_path: Path) -> None:
    """If one of them stayed, the next write would find that its base files are lost."""
    root = tmp_path / "t"
    completed_twice(root)
    table = Table.open(root)
    table.rollback()
    assert hudi_rows(root) == without_meta(rows(("a", "x", 1))) and table.fsck() == []
    table.upsert(rows(("a", "x", 3)))
    assert hudi_rows(root) == without_meta(rows(("a", "x", 3)))


@pytest.mark.parametrize("later_ms", [-1, 1])
def test_a_second_completed_file_hides_nothing_when_its_commit_is_archived(
    tmp_path: Path, later_ms: int
) -> None:
    """If one of them stayed, the timeline began with it, and hid what was archived after it."""
    root = tmp_path / "t"
    table = Table.create(root, table_version=9, options=FEW, **KEYS)
    table.upsert(rows(("a", "x", 1)))
    table.upsert(rows(("b", "y", 1)))  # archived, too
    second = second_of(min(root.glob(".hoodie/timeline/*.commit")), later_ms)
    time17 = second.name[:17]
    for ts in range(2, 9):
        Table.open(root).upsert(rows(("c", "z", ts)))
        wanted = without_meta(rows(("a", "x", 1), ("b", "y", 1), ("c", "z", ts)))
        assert without_meta(Table.open(root).to_arrow()) == hudi_rows(root) == wanted
    assert not [*root.glob(f".hoodie/timeline/{time17}_*")] and Table.open(root).fsck() == []
