"""A table's id: records of one table do nothing in another one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tables import tree
from test_journal import OURS, Life

from hoodie_nb import Table
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.errors import InvalidTable
from hoodie_nb.records.sealing import Interval

KINDS = {"prepared": None, "sealed": Interval(checkpoints=1000), "progress": None}


def two_tables(folder: Path, kind: str) -> tuple[Life, Life]:
    """Return a table with records of a kind, and another one."""
    one, other = Life(folder / "one", KINDS[kind]), Life(folder / "other", None)
    one.checkpoint(("a", 1, 1, False), ("b", 9, 999, False))
    other.checkpoint(("b", 1, 1, False))
    other.job.checkpointing.complete()
    if kind == "progress":
        one.job.checkpointing.complete()
    return one, other


def copy_records(one: Life, other: Life, kind: str) -> Path:
    """Copy records and staged files from one table into another; return one of the records."""
    for name in (kind, "staged"):
        if (one.path / OURS / name).exists():
            shutil.copytree(one.path / OURS / name, other.path / OURS / name, dirs_exist_ok=True)
    return next((other.path / OURS / kind).iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_another_table_is_refused(tmp_path: Path, kind: str) -> None:
    """It is named, nothing of it is applied, and without it the table goes on."""
    one, other = two_tables(tmp_path, kind)
    kept = {p: p.read_bytes() for p in (other.path / OURS / kind).glob("*")}
    record = copy_records(one, other, kind)
    with pytest.raises(InvalidTable, match=rf"{kind}/{record.name} belongs to another table"):
        other.start()
    assert other.rows_by_key() == {"b": (1, 1)}
    record.unlink()
    for path, content in kept.items():
        path.write_bytes(content)
    other.start()
    other.checkpoint(("c", 1, 1, False))
    other.job.checkpointing.complete()
    assert other.rows_by_key() == {"b": (1, 1), "c": (1, 1)}
    assert fsck(other.path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_whole_table_goes_on_with_its_records(tmp_path: Path, kind: str) -> None:
    """A copy has the id of its original, so that its prepared and sealed work is applied."""
    one, _ = two_tables(tmp_path, kind)
    before = tree(one.path)
    shutil.copytree(one.path, tmp_path / "copy")
    one.path = tmp_path / "copy"
    one.start().checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 1), "b": (9, 999)}
    assert tree(tmp_path / "one") == before


@pytest.mark.parametrize("kind", KINDS)
def test_rules_that_were_deleted_get_the_id_of_the_records(tmp_path: Path, kind: str) -> None:
    """The fix of damaged rules, to delete them, invalidates no record of the table."""
    one, _ = two_tables(tmp_path, kind)
    rules = one.path / OURS / "rules.json"
    before = rules.read_bytes()
    rules.unlink()
    one.start().checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 1), "b": (9, 999)}
    assert rules.read_bytes() == before


def test_a_replaced_table_has_another_id(tmp_path: Path) -> None:
    """Records of the table that was replaced are refused when a backup brings them back."""
    one, _ = two_tables(tmp_path, "prepared")
    shutil.copytree(one.path / OURS, tmp_path / "backup")
    table = Table.open(one.path)
    settings = {"record_key": "id", "partition_by": "part", "ordering": "ts"}
    Table.create(one.path, schema=table.schema, if_exists="replace", **settings)
    for name in ("prepared", "staged"):
        shutil.copytree(tmp_path / "backup" / name, one.path / OURS / name, dirs_exist_ok=True)
    with pytest.raises(InvalidTable, match="belongs to another table"):
        one.start()
    assert one.rows_by_key() == {}
