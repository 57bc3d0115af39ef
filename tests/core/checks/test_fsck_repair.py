"""`fsck(repair=True)`: what it repairs, what it leaves, and how it ends after a failure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from each_fault import each_fault
from tables import edited_elsewhere, hudi_rows, tree, without_meta
from test_fsck_fixes import HELD, bloom_of, create, file_of, pending, rows, stray, with_footer

from hoodie_nb import Table
from hoodie_nb.__main__ import main
from hoodie_nb.checks.findings import REPAIRS
from hoodie_nb.errors import ConcurrentWriter, InvalidConfig
from hoodie_nb.files.base_file import BLOOM

METADATA = ".hoodie_partition_metadata"
MODEL = without_meta(rows(*HELD))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table of three rows in two partitions."""
    made = create(tmp_path / "t")
    made.upsert(rows(*HELD))
    return made


def unfinished(table: Table) -> Path:
    """Leave a base file of a pending instant, with its marker, as a dead writer does."""
    pending(table)
    time17 = "20990101000000000"
    source = file_of(table, "x")
    name = source.name.replace(source.stem[-17:], time17)
    marker = Path(table.path, f".hoodie/.temp/{time17}/x/{name}.marker.CREATE")
    marker.parent.mkdir()
    marker.touch()
    return Path(shutil.copy(source, source.with_name(name)))


DAMAGE: dict[str, Callable[[Table], object]] = {
    "damaged-partition-metadata": lambda t: Path(t.path, "x", METADATA).write_text("a=b"),
    "leftover": lambda t: Path(t.path, ".hoodie/.temp/1").mkdir(parents=True),
    "lost-partition-metadata": lambda t: Path(t.path, "x", METADATA).unlink(),
    "orphan-file": stray,
    "pending-instant": pending,
    "unfinished-file": unfinished,
    "wrong-key-index": lambda t: with_footer(file_of(t, "y"), **{BLOOM: bloom_of("other")}),
}


@pytest.mark.parametrize("code", sorted(DAMAGE))
def test_each_repair_is_done_and_said(table: Table, code: str) -> None:
    """The finding says what was done; afterwards there is none, and the rows are the same."""
    DAMAGE[code](table)
    before = tree(table.path)
    assert code in [f.code for f in table.fsck()] and tree(table.path) == before
    found = Table.open(table.path).fsck(repair=True)
    assert {(f.code, f.repaired) for f in found} <= REPAIRS.items()
    assert code in [f.code for f in found] and "repaired (" in str(found[0])
    assert Table.open(table.path).fsck() == []
    assert without_meta(Table.open(table.path).to_arrow()) == hudi_rows(table.path) == MODEL
    after = tree(table.path)
    assert Table.open(table.path).fsck(repair=True) == [] and tree(table.path) == after


def test_each_repair_has_a_case() -> None:
    """Those of late files need an object store: see lock/test_late_completed.py."""
    assert DAMAGE.keys() | {"late-archived-file", "late-completed-file"} == REPAIRS.keys()


def test_a_clean_table_is_not_touched(table: Table) -> None:
    """Without a finding nothing is written."""
    before = tree(table.path)
    assert table.fsck(repair=True) == [] and tree(table.path) == before


def of_a_rollback(table: Table) -> Path:
    """Return a base file that another engine wrote after its instant was rolled back."""
    commit = table.upsert(rows(("z", "x", 1)))
    assert commit is not None
    (source,) = Path(table.path, "x").glob(f"*_{commit.requested_time}.parquet")
    content = source.read_bytes()
    table.rollback()
    shutil.rmtree(Path(table.path, ".hoodie/.hoodie_nb/index"))  # it names the undone commit
    source.write_bytes(content)
    return source


def copied(table: Table) -> Path:
    """Return a file in a copy of a partition, as a backup inside of the table."""
    folder = Path(shutil.copytree(Path(table.path, "x"), Path(table.path, "copy")))
    return next(folder.glob("*.parquet"))


def of_another_engine(table: Table) -> Path:
    """Return a file that a commit without a checksum does not name: the commit may be damaged."""
    source = file_of(table, "x")
    file = Path(shutil.copy(source, source.with_name(source.name.replace("_0-0-0_", "_9-9-9_"))))
    for commit in Path(table.path, ".hoodie").glob("*.commit"):
        edited_elsewhere(commit, json.loads(commit.read_bytes()))
    return file


def of_nothing(table: Table) -> Path:
    """Return a file of an instant of which nothing is known: its commit may have been lost."""
    file = file_of(table, "x")
    name = file.name.replace(file.stem[-17:], "20990101000000000")
    return Path(shutil.copy(file, file.with_name(name)))


@pytest.mark.parametrize("make", [copied, of_another_engine, of_nothing])
def test_an_orphan_that_may_be_needed_stays(table: Table, make: Callable[[Table], Path]) -> None:
    """It keeps its cure, while the other findings are repaired."""
    file = make(table)
    DAMAGE["leftover"](table)
    left = [f for f in Table.open(table.path).fsck(repair=True) if not f.repaired]
    assert file.exists() and any(f.code == "orphan-file" and f.fix for f in left)
    assert not Path(table.path, ".hoodie/.temp/1").exists()


def test_an_orphan_of_a_rollback_is_deleted(table: Table) -> None:
    """No reader will ever show it: its instant is known to be rolled back."""
    file = of_a_rollback(table)
    (found,) = Table.open(table.path).fsck(repair=True)
    assert (found.code, found.repaired) == ("orphan-file", "deleted") and not file.exists()
    assert hudi_rows(table.path) == MODEL and table.fsck() == []


def test_a_lost_file_does_not_keep_the_others_from_being_repaired(table: Table) -> None:
    """What cannot be recovered stays a finding with its cure, and is not made worse."""
    lost = file_of(table, "x")
    content = lost.read_bytes()
    lost.unlink()
    for code in ("leftover", "lost-partition-metadata", "wrong-key-index"):
        DAMAGE[code](table)
    found = Table.open(table.path).fsck(repair=True)
    assert [f.code for f in found if not f.repaired and "lost-b" in f.code] == ["lost-base-file"]
    assert "leftover" in [f.code for f in found if f.repaired]
    lost.write_bytes(content)
    Table.open(table.path).fsck(repair=True)
    assert Table.open(table.path).fsck() == [] and hudi_rows(table.path) == MODEL


def test_a_table_in_use_is_not_repaired(table: Table, tmp_path: Path) -> None:
    """Another engine's live writer is left alone, and so is what it has written."""
    unfinished(table)
    beat = Path(table.path, ".hoodie/.heartbeat")
    beat.mkdir()
    (beat / "20990101000000000").touch()
    before = tree(table.path)
    with pytest.raises(ConcurrentWriter):
        Table.open(table.path).fsck(repair=True)
    assert {k: v for k, v in tree(table.path).items() if "/rules" not in k} == {
        k: v for k, v in before.items() if "/rules" not in k
    }


@pytest.mark.parametrize("how", ["before", "error"])
def test_a_failure_anywhere_in_a_repair_is_repaired(tmp_path: Path, how: str) -> None:
    """At each operation the rows stay the same, and the next repair finishes."""
    made = create(tmp_path / "source")
    made.upsert(rows(*HELD[:2]))
    of_a_rollback(made)
    made.upsert(rows(*HELD[2:]))
    for code in ("wrong-key-index", "lost-partition-metadata", "unfinished-file"):
        DAMAGE[code](made)
    repair = partial(Table.fsck, repair=True)
    for root, _ in each_fault(made.path, repair, how, at_least=20, raises=OSError):
        again = Table.open(root)
        assert without_meta(again.to_arrow()) == MODEL
        assert all(f.repaired for f in again.fsck(repair=True))
        assert again.fsck() == [] and hudi_rows(root) == MODEL
    repair(made)
    assert Table.open(made.path).fsck() == []


def test_the_command_says_what_it_repaired(table: Table, capsys: pytest.CaptureFixture) -> None:
    """Exit code 0 if all was repaired; without `--repair` nothing changes."""
    DAMAGE["leftover"](table)
    assert main(["fsck", table.path]) == 1 and "fix: call" in capsys.readouterr().out
    assert main(["fsck", table.path, "--repair"]) == 0
    shown = capsys.readouterr().out
    assert "repaired: deleted" in shown and f"{table.path}: clean" in shown
    Path(shutil.copy(file_of(table, "x"), Path(table.path, "x", "other.parquet")))
    assert main(["fsck", table.path, "--repair"]) == 1
    assert "at stake: rows doubled (foreign-file)" in capsys.readouterr().out


def test_a_repair_by_another_word_is_refused(table: Table) -> None:
    """The error names the words that there are; the command has an option for each."""
    with pytest.raises(InvalidConfig, match=r"'dedupe' is none of True, 'deduplicate', 'accept_l"):
        table.fsck(repair="dedupe")
    table.insert(rows(("a", "x", 1)))
    assert main(["fsck", table.path, "--repair"]) == 1
    assert main(["fsck", table.path, "--deduplicate"]) == 0 and table.fsck() == []
    for file in Path(table.path, "x").glob("*.parquet"):
        file.unlink()
    assert main(["fsck", table.path, "--accept-loss"]) == 0
    assert Table.open(table.path).fsck() == []
