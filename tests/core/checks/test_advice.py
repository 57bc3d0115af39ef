"""The advice of errors, followed: a table is damaged, the error is read, and what it says is done.

Advice with alternatives has a case for each. Findings of fsck are followed in `test_cures`, advice
about streams in `test_advice_streams`; docs/advice.md lists them all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from advice import (
    FIRST,
    HELD,
    KEYS,
    OLD,
    PENDING,
    SECOND,
    Act,
    Follow,
    Rows,
    Use,
    archive_first,
    archive_then,
    archived_beyond,
    as_fsck_says,
    backup,
    both_properties,
    call,
    compacted,
    damaged_before_archiving,
    delete_with_hudi,
    deleted,
    drop_and_roll_back,
    drop_pending,
    forgotten,
    in_place_of_the_lock,
    keep,
    linked,
    move_base_files,
    move_instant,
    move_meta,
    move_newer,
    move_of_commit,
    move_one_of_two,
    moved,
    not_text,
    not_text_copy,
    one_commit_left,
    other_link,
    renamed,
    restores,
    saved_and_damaged,
    saved_beyond,
    saves,
    stopped,
    then,
    time_of,
    twice,
    unlinked,
    unnamed,
    upsert,
    without_savepoint,
)
from archives import active, archived
from damages import base, build, commits, cut, edit, forget, meta, properties
from damages import savepoint as damaged_savepoint
from tables import hudi_rows, without_meta
from test_fsck_fixes import rows

from hoodie_nb import Table
from hoodie_nb.errors import HoodieError, InvalidConfig, InvalidTable


@dataclass(frozen=True)
class Case:
    """A damage, a use that is refused, words of its error, what they advise, and the rows then."""

    damage: Act
    use: Use
    words: str
    follow: Follow = backup
    rows: Rows = HELD
    is_old: bool = False


def read(table: Table) -> object:
    """Read all rows."""
    return table.to_arrow()


UNREADABLE, VANISHED = "is not a readable commit", "was completed"
BEYOND = "belongs to a commit that is not on the timeline"
ROLLBACK = "the plan of the rollback"
BY_HAND = ("restore.rollback.post", "restore.withdrawn.post", "rollback.files.post")
CASES = {
    "commit: backup": Case(lambda t: cut(commits(t)[-1]), read, UNREADABLE),
    "commit: move": Case(lambda t: cut(commits(t)[-1]), upsert, UNREADABLE, move_instant, SECOND),
    "base file: backup": Case(lambda t: cut(base(t, "y")), read, "cannot be read"),
    "base file: rollback": Case(
        lambda t: cut(base(t, "y")),
        read,
        r"undo that commit \(Table.rollback",
        then(lambda t: t.rollback()),
        SECOND,
    ),
    "base file: restore": Case(
        lambda t: cut(base(t, "x")), read, r"Table.rollback or restore\)", then(restores(0)), FIRST
    ),
    "lost base file: backup": Case(lambda t: base(t).unlink(), upsert, "is missing: a write"),
    "lost base file: accept": Case(
        lambda t: base(t).unlink(), upsert, r"repair=.accept_loss", call, FIRST + HELD[3:]
    ),
    "lost completed file: backup": Case(lambda t: commits(t)[-1].unlink(), upsert, VANISHED),
    "lost completed file: move": Case(
        lambda t: commits(t)[-1].unlink(), upsert, VANISHED, move_instant, SECOND
    ),
    "archived beyond: archive": Case(archived_beyond, upsert, BEYOND, archive_first),
    "archived beyond: move": Case(
        archived_beyond, upsert, BEYOND, move_of_commit, FIRST + HELD[3:]
    ),
    "no timeline: backup": Case(
        lambda t: [forget(t, c) for c in commits(t)], upsert, "has no commit, but"
    ),
    "no timeline: move": Case(
        lambda t: [forget(t, c) for c in commits(t)],
        upsert,
        "move the base files out of the table",
        move_base_files,
        (),
    ),
    "two files: move": Case(
        twice, read, "move the files with fewer rows", move_one_of_two, OLD, True
    ),
    "properties: no checksum": Case(
        both_properties("hoodie.table.checksum=", "#"), upsert, "has no hoodie.table.checksum"
    ),
    "properties: no name": Case(
        both_properties("hoodie.table.name=", "#"), read, "has no hoodie.table.name"
    ),
    "properties: other name": Case(
        both_properties("hoodie.table.name=", "hoodie.table.name=x"),
        read,
        "checksum does not match",
    ),
    "properties: other rules": Case(
        lambda t: properties(t, "field=ts\n", "field=v\n"), upsert, "a line is damaged or lost"
    ),
    "options: backup": Case(lambda t: cut(meta(t, ".hoodie_nb/options.json")), upsert, "options"),
    "options: delete": Case(
        lambda t: cut(meta(t, ".hoodie_nb/options.json")),
        upsert,
        "delete it to use the default options",
        deleted(".hoodie_nb/options.json"),
    ),
    "rules: delete": Case(
        lambda t: cut(meta(t, ".hoodie_nb/rules.json")),
        upsert,
        "delete it to accept",
        deleted(".hoodie_nb/rules.json"),
    ),
    "clean plan: backup": Case(
        stopped("clean.files.post", lambda t: t.clean(commits=1)),
        lambda t: t.to_arrow(as_of=time_of(Path(t.path), 0)),
        "the plan of the clean",
    ),
    "rollback plan of a failed write: backup": Case(
        stopped("coord.commit.pre rollback.plan.post", upsert), upsert, ROLLBACK
    ),
    "rollback plan of a failed write: delete": Case(
        stopped("coord.commit.pre rollback.plan.post", upsert), upsert, ROLLBACK, drop_pending
    ),
    "savepoint: delete and create": Case(
        lambda t: damaged_savepoint(t, b""),
        Table.savepoints,
        "delete it with Table.delete_savepoint and create it again",
        then(without_savepoint(-1), saves(-1), lambda t: t.savepoints()),
    ),
    "savepoint: other comment": Case(
        lambda t: Table.open(t).savepoint(comment="one"),
        saves(-1, "two"),
        "delete it first, to change its comment",
        then(without_savepoint(-1), saves(-1, "two")),
    ),
    "restore: delete savepoints": Case(
        lambda t: saves(-1)(Table.open(t)),
        restores(0),
        "delete those with Table.delete_savepoint first",
        then(without_savepoint(-1), restores(0)),
        FIRST,
    ),
    "restore: to the savepoint": Case(
        lambda t: saves(1)(Table.open(t)),
        restores(0),
        "or restore to the newest of them",
        then(restores(1)),
        SECOND,
    ),
    "restore: a lost file, backup": Case(
        lambda t: base(t).unlink(), restores(1), "is lost, and commit .* restore it from a backup"
    ),
    "restore: a lost file, another commit": Case(
        lambda t: base(t).unlink(), restores(1), "choose another commit", then(restores(0)), FIRST
    ),
    "rollback: not the newest": Case(
        keep,
        lambda t: t.rollback(time_of(Path(t.path), 1)),
        "Table.restore undoes all commits after one",
        then(restores(0)),
        FIRST,
    ),
    "rollback: savepoint": Case(
        lambda t: saves(-1)(Table.open(t)),
        Table.rollback,
        "delete it with Table.delete_savepoint first",
        then(without_savepoint(-1), lambda t: t.rollback()),
        SECOND,
    ),
    "rollback: only merged files": Case(
        compacted, Table.rollback, "call Table.restore", then(restores(1)), SECOND
    ),
    "rollback: archived": Case(
        one_commit_left,
        Table.rollback,
        "delete or overwrite its rows instead",
        then(lambda t: t.delete(where="p = 'z'")),
        HELD,
        True,
    ),
    "archived beyond: delete with Hudi": Case(
        saved_beyond, read, "Delete the savepoints up to", delete_with_hudi
    ),
    "schema of a commit: backup": Case(
        lambda t: edit(t, -1, lambda content: content["extraMetadata"].update(schema="{")),
        read,
        "the table's schema cannot be read",
    ),
    "newer file: backup": Case(unnamed, upsert, "is older than .* which no commit names"),
    "newer file: move": Case(
        unnamed, upsert, "or move that file out of the table", move_newer, FIRST + HELD[3:]
    ),
    "lost commit: backup": Case(
        forgotten,
        upsert,
        "restore the commit's files from a backup",
        rows=(*HELD, ("e", "y", 5)),
    ),
    "archiving: a damaged archive": Case(
        damaged_before_archiving,
        Table.archive,
        "so it is not known whether files of no commit can be deleted",
        archive_then(as_fsck_says),
        (*HELD, ("e", "y", 5)),
    ),
    "a time that none can follow": Case(
        lambda t: meta(t, "99991231235959999.rollback").touch(),
        upsert,
        "move the file away",
        move_meta,
    ),
    "folder that is no text: rename": Case(not_text, read, "is not UTF-8", renamed),
    "folder that is no text: move": Case(
        not_text_copy,
        read,
        "move it out of the table",
        lambda t, _: moved(t, t / os.fsdecode(b"\xff")),
    ),
    "a link: replace": Case(linked, upsert, "is a link", unlinked),
    "a link: delete": Case(other_link, read, "delete the link", lambda t, _: (t / "q").unlink()),
    "lock: a folder": Case(
        in_place_of_the_lock(Path.mkdir), upsert, "delete it", deleted(".hoodie_nb/lock")
    ),
    "lock: a link": Case(
        in_place_of_the_lock(lambda lock: lock.symlink_to(lock.parent / "options.json")),
        upsert,
        "delete it",
        deleted(".hoodie_nb/lock"),
    ),
    "lock: a pipe": Case(
        in_place_of_the_lock(os.mkfifo), upsert, "delete it", deleted(".hoodie_nb/lock")
    ),
    "archive: backup": Case(
        saved_and_damaged, read, "savepoint .*: restore that file from a backup"
    ),
} | {
    f"rollback plan by hand, {point}: {how}": Case(
        stopped(point, Table.rollback), upsert, ROLLBACK, *follow
    )
    for point in BY_HAND
    for how, follow in {"backup": (backup, SECOND), "delete": (drop_and_roll_back, SECOND)}.items()
}


@pytest.fixture(scope="module")
def sound(new_folder: Callable[[], Path]) -> dict[bool, Path]:
    """Return the folders of the small table and of the one with archived commits."""
    return {
        is_old: Path(build(new_folder() / "t", archived=is_old).path) for is_old in (False, True)
    }


@pytest.mark.parametrize("name", CASES)
def test_the_advice_works(sound: dict[bool, Path], tmp_path: Path, name: str) -> None:
    """The error names the advice; when it is followed, the rows are those that it promises."""
    case = CASES[name]
    root = Path(shutil.copytree(sound[case.is_old], tmp_path / "t"))
    keep(root)
    case.damage(root)
    with pytest.raises(HoodieError, match=case.words) as refused:
        case.use(Table.open(root))
    case.follow(root, str(refused.value))
    table = Table.open(root)
    assert [str(f) for f in table.fsck() if f.code not in PENDING] == []
    upsert(table)
    expected = without_meta(rows(*case.rows, ("w", "x", 20), ("w", "y", 20)))
    assert without_meta(table.to_arrow()) == expected
    assert hudi_rows(root) == expected
    assert [str(finding) for finding in Table.open(root).fsck()] == []


@pytest.mark.parametrize("name", ["archived beyond: move", "lost base file: backup"])
def test_the_advice_works_with_the_handle_that_was_refused(
    sound: dict[bool, Path], tmp_path: Path, name: str
) -> None:
    """A table that is open does not go by what it had seen before the advice was followed."""
    case, root = CASES[name], Path(shutil.copytree(sound[False], tmp_path / "t"))
    keep(root)
    case.damage(root)
    table = Table.open(root)
    with pytest.raises(HoodieError, match=case.words) as refused:
        case.use(table)
    case.follow(root, str(refused.value))
    upsert(table)
    expected = without_meta(rows(*case.rows, ("w", "x", 20), ("w", "y", 20)))
    assert without_meta(table.to_arrow()) == hudi_rows(root) == expected


def test_a_removed_commit_whose_older_files_were_cleaned_can_be_put_back(tmp_path: Path) -> None:
    """Moved out as the error says, its files turn out to be the only ones: nothing is lost yet."""
    table = build(tmp_path / "t")
    table.upsert(rows(("a", "x", 4)))
    table.clean(versions=1)
    root, held = Path(table.path), without_meta(table.to_arrow())
    keep(root)
    commits(root)[-1].unlink()
    with pytest.raises(InvalidTable, match="out of the table") as refused:
        upsert(Table.open(root))
    move_instant(root, str(refused.value))
    with pytest.raises(InvalidTable, match=r"is missing: a write .* Restore it from a backup"):
        upsert(Table.open(root))
    backup(root, "backup")
    assert hudi_rows(root) == without_meta(Table.open(root).to_arrow()) == held
    assert Table.open(root).fsck() == []


def test_a_removed_commit_that_newer_ones_contain_is_given_up_as_the_error_says(
    tmp_path: Path,
) -> None:
    """What a newer commit has written again stays, the other rows are gone, and no key doubles."""
    table, root = build(tmp_path / "t"), tmp_path / "t"
    table.upsert(rows(("a", "x", 5), ("n", "y", 5)))
    removed = commits(root)[-1]
    table.upsert(rows(("a", "x", 4)))  # too old: the file of x is not written again
    table.upsert(rows(("a", "x", 6)))
    removed.unlink()
    with pytest.raises(InvalidTable, match="except those that newer commits have") as refused:
        upsert(Table.open(root))
    move_instant(root, str(refused.value))
    upsert(Table.open(root))
    expected = rows(("a", "x", 6), *HELD[1:], ("w", "x", 20), ("w", "y", 20))
    assert hudi_rows(root) == without_meta(Table.open(root).to_arrow()) == without_meta(expected)
    assert Table.open(root).fsck() == []


def test_times_before_a_clean_without_a_plan_are_named_by_fsck(tmp_path: Path) -> None:
    """After its two files are deleted, the rows of now are right; fsck lists what is gone."""
    table, root = build(tmp_path / "t"), tmp_path / "t"
    first, held = time_of(root, 0), without_meta(table.to_arrow())
    stopped("clean.files.post", lambda t: t.clean(commits=1))(root)
    with pytest.raises(InvalidTable, match="`fsck` says which earlier times") as refused:
        Table.open(root).to_arrow(as_of=first)
    drop_pending(root, str(refused.value))
    table = Table.open(root)
    assert hudi_rows(root) == without_meta(table.to_arrow()) == held
    assert [(f.code, first in f.what) for f in table.fsck()] == [("lost-older-file", True)]


def test_earlier_times_are_given_up_with_the_file_of_a_clean(tmp_path: Path) -> None:
    """Without it reads as of times before the clean are refused; those of now are right."""
    table, root = build(tmp_path / "t"), tmp_path / "t"
    first = time_of(root, 0)
    table.clean(commits=1)
    (done,) = root.glob(".hoodie/*.clean")
    done.write_bytes(b"junk")
    with pytest.raises(InvalidTable, match="delete it to give earlier times up") as refused:
        Table.open(root).to_arrow(as_of=first)
    deleted(done.name)(root, str(refused.value))
    upsert(Table.open(root))
    with pytest.raises(InvalidConfig, match="were cleaned away"):
        Table.open(root).to_arrow(as_of=first)
    expected = rows(*HELD, ("w", "x", 20), ("w", "y", 20))
    assert hudi_rows(root) == without_meta(Table.open(root).to_arrow()) == without_meta(expected)
    assert Table.open(root).fsck() == []


def test_archiving_goes_on_when_savepoints_are_deleted(tmp_path: Path) -> None:
    """As the error for `hoodie.archive.beyond.savepoint` says."""
    table = build(tmp_path / "t", archived=True)
    saved, before = table.savepoint(), archived(table.path)
    for value in range(12, 20):
        table.upsert(rows(("z", "z", value)))
    assert archived(table.path)[-1] < saved.requested_time and len(active(table.path)) > 8
    with pytest.raises(InvalidConfig, match="delete savepoints that are no longer needed"):
        options = {"hoodie.archive.beyond.savepoint": True}
        Table.create(table.path, if_exists="open", options=options, **KEYS)
    table.delete_savepoint(saved)
    table.upsert(rows(("z", "z", 20)))
    assert len(archived(table.path)) > len(before) and len(active(table.path)) <= 3
    assert hudi_rows(table.path) == without_meta(rows(*HELD, ("z", "z", 20)))
    assert table.fsck() == []


def test_a_table_that_is_in_the_way_is_opened_or_replaced(tmp_path: Path) -> None:
    """Each of the three calls that the error names does what it says."""
    root = Path(build(tmp_path / "t").path)
    with pytest.raises(
        InvalidTable, match=r"Table\.open, if_exists='open', or if_exists='replace'"
    ):
        Table.create(root, **KEYS)
    held = without_meta(rows(*HELD))
    assert without_meta(Table.open(root).to_arrow()) == held
    assert without_meta(Table.create(root, if_exists="open", **KEYS).to_arrow()) == held
    table = Table.create(root, if_exists="replace", **KEYS)
    assert table.to_arrow().num_rows == 0
    upsert(table)
    expected = without_meta(rows(("w", "x", 20), ("w", "y", 20)))
    assert hudi_rows(root) == without_meta(table.to_arrow()) == expected and table.fsck() == []


def test_an_instant_that_cannot_be_archived_is_restored(tmp_path: Path) -> None:
    """The archiving waits for the file, and goes on when it is restored."""
    table, root = build(tmp_path / "t", archived=True), tmp_path / "t"
    (done, *_) = sorted(root.glob(".hoodie/*.clean"))
    whole = done.read_bytes()
    done.write_bytes(b"junk")
    for value in range(12, 20):
        table.upsert(rows(("z", "z", value)))
    why = {event.values["why"] for event in table.events.records("archive_postponed")}
    assert any("cannot be archived" in text and "restore it from a backup" in text for text in why)
    done.write_bytes(whole)
    before = len(archived(root))
    table.upsert(rows(("z", "z", 20)))
    table.archive()
    assert len(archived(root)) > before and not done.exists()
    assert hudi_rows(root) == without_meta(rows(*HELD, ("z", "z", 20))) and table.fsck() == []
