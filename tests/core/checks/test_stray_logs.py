"""fsck(repair=...) of merge-on-read tables of this library: stray, lost and damaged log files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from each_fault import each_fault, opened
from index_truth import index_gaps
from tables import data_files, hudi_rows, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.index.lookup import BloomStateIndex
from hoodie_nb.logs.log_name import LogFileName

pytestmark = pytest.mark.usefixtures("many_logs")
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])


def row(key: str, v: int, p: str = "a") -> dict[str, Any]:
    """Return a row."""
    return {"id": key, "p": p, "ts": v, "v": v}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table with k0 to k4 in two partitions, and two logs in the first one."""
    table = Table.create(
        tmp_path / "t",
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="ts",
        table_type="merge_on_read",
        options={"hoodie_nb.append.above.bytes": 0},
    )
    table.upsert([row(f"k{n}", 1, "ab"[n % 2]) for n in range(5)])
    table.upsert([row("k0", 2), row("k2", 2)])
    table.upsert([row("k0", 3)])
    return table


def logs(table: Table) -> list[Path]:
    """Return the log files, in the order of their instants."""
    found = (Path(table.path, path) for path in data_files(table.path) if ".log." in path)
    return sorted(found, key=lambda path: str(path).partition(".log")[0][-17:])


def codes(table: Table) -> list[str]:
    """Return the codes of the findings."""
    return sorted(finding.code for finding in Table.open(table.path).fsck())


def values(table: Table) -> dict[str, int]:
    """Return the value of each key; hudi-rs must read the same rows."""
    found = Table.open(table.path).to_arrow(meta=False)
    assert hudi_rows(table.path) == without_meta(found)
    return {r["id"]: r["v"] for r in found.to_pylist()}


def renamed(log: Path, **parts: Any) -> Path:
    """Return a path whose name differs in some parts from that of a log."""
    name = LogFileName.parse(log.name)
    assert name is not None
    return log.with_name(str(replace(name, **parts)))


def test_a_log_that_its_commit_does_not_name_is_deleted(table: Table) -> None:
    """A second attempt ran on after the commit: other readers would merge it."""
    before = values(table)
    log = logs(table)[-1]
    stray = Path(shutil.copy(log, renamed(log, version=2, write_token="0-0-9")))
    (finding,) = table.fsck()
    assert (finding.code, finding.at_stake) == ("orphan-file", "rows doubled")
    (done,) = table.fsck(repair=True)
    assert done.repaired == "deleted"
    assert not stray.exists()
    assert log.exists()
    assert values(table) == before
    assert table.fsck() == []


def test_a_log_of_an_undone_commit_is_deleted(table: Table) -> None:
    """It came back, from a backup say: once its instant is archived it would count."""
    log = logs(table)[-1]
    content = log.read_bytes()
    table.rollback()
    assert not log.exists()
    log.write_bytes(content)
    before = values(table)
    assert codes(table) == ["orphan-file"]
    table.fsck(repair=True)
    assert not log.exists()
    assert values(table) == before
    assert table.fsck() == []


def test_a_log_of_an_unknown_instant_stays(table: Table) -> None:
    """Nothing says that its commit was undone: it may be lost, so the log is only reported."""
    log = logs(table)[-1]
    stray = Path(shutil.copy(log, renamed(log, instant_time="29990101000000000")))
    assert codes(table) == ["orphan-file"]
    (left,) = table.fsck(repair=True)
    assert left.repaired == ""
    assert stray.exists()


def test_a_log_of_another_partition_stays(table: Table) -> None:
    """It was moved or copied by hand, and may be the only copy."""
    log = logs(table)[-1]
    log.rename(moved := Path(table.path, "b", log.name))
    assert codes(table) == ["lost-log", "orphan-file"]
    table.fsck(repair=True)
    assert moved.exists()
    moved.rename(log)
    assert codes(table) == []


def test_what_a_dead_writer_left_is_repaired(table: Table) -> None:
    """Its published log is reported with its instant, and goes with it."""
    before = values(table)
    for root, error in each_fault(
        table.path, lambda t: t.upsert([row("k0", 9), row("k2", 9)]), "before", raises=OSError
    ):
        assert error is not None
        crashed = Table(opened(root))
        crashed.fsck(repair=True)
        assert codes(crashed) == []
        found = {r["id"]: r["v"] for r in crashed.to_arrow().to_pylist()}
        assert found in (before, {**before, "k0": 9, "k2": 9})


@pytest.mark.parametrize("number, lost", [(0, {"k0": 3, "k2": 1}), (1, {"k0": 2, "k2": 2})])
def test_the_loss_of_a_log_can_be_accepted(table: Table, number: int, lost: dict[str, int]) -> None:
    """The slice goes on with base file and other logs; reads before that still name the log."""
    before = values(table)
    log = logs(table)[number]
    log.unlink()
    (finding,) = Table.open(table.path).fsck()
    assert finding.code == "lost-log"
    assert 'fsck(repair="accept_loss")' in finding.fix
    (left,) = Table.open(table.path).fsck(repair=True)
    assert left.repaired == ""
    table = Table.open(table.path)
    (done,) = table.fsck(repair="accept_loss")
    assert done.repaired == "rewritten"
    assert values(table) == {**before, **lost}
    assert table.fsck() == []
    assert index_gaps(Table.open(table.path)._handle) == []
    assert table.timeline()["action"].iloc[-1] == "deltacommit"
    with pytest.raises(InvalidTable, match=rf"{log.name} is lost"):
        table.rollback()
    table.upsert([row("k2", 7), row("new", 7)])
    assert values(table) == {**before, **lost, "k2": 7, "new": 7}


def test_a_damaged_log_is_moved_out_and_its_loss_accepted(table: Table) -> None:
    """As its finding says."""
    before = values(table)
    log = logs(table)[-1]
    content = log.read_bytes()
    log.write_bytes(content[:-20] + bytes(20))
    (finding,) = Table.open(table.path).fsck()
    assert finding.code == "damaged-log"
    assert "move it out of the table" in finding.fix
    log.unlink()
    Table.open(table.path).fsck(repair="accept_loss")
    assert values(table) == {**before, "k0": 2}


def test_the_loss_of_a_base_file_below_logs_can_be_accepted(table: Table) -> None:
    """Rows in the logs stay."""
    (piece,) = (p for p in table._handle.file_groups() if p.logs)
    Path(table.path, piece.base_path).unlink()
    assert "lost-base-file" in codes(table)
    table = Table.open(table.path)
    table.fsck(repair="accept_loss")
    assert values(table) == {"k0": 3, "k1": 1, "k2": 2, "k3": 1}
    assert table.fsck() == []


def test_a_wrong_bloom_filter_below_logs_is_repaired(table: Table) -> None:
    """Base file and logs are merged into a new base file."""
    before = values(table)
    (piece,) = (p for p in table._handle.file_groups() if p.logs)
    base = Path(table.path, piece.base_path)
    rows = pq.read_table(base)
    metadata = {**rows.schema.metadata, b"hoodie_max_record_key": b"b"}
    pq.write_table(rows.replace_schema_metadata(metadata), base)
    assert "wrong-key-index" in codes(table)
    Table.open(table.path).fsck(repair=True)
    assert "wrong-key-index" not in codes(table)
    assert values(table) == before
    assert all(not p.logs for p in Table.open(table.path)._handle.file_groups())


@pytest.mark.parametrize("lost", [True, False])
def test_the_commit_of_a_log_can_be_undone(table: Table, lost: bool) -> None:
    """As the error of a read says of a lost log, and of a damaged one."""
    log = logs(table)[-1]
    content = log.read_bytes()
    if lost:
        log.unlink()
    else:
        log.write_bytes(bytes(6) + content[6:])
    with pytest.raises(InvalidTable, match=r"undo .* later ones \(Table\.restore|is damaged"):
        Table.open(table.path).to_arrow()
    table = Table.open(table.path)
    table.restore(table.history()["requested_time"].iloc[-2])
    assert values(table) == {"k0": 2, "k1": 1, "k2": 2, "k3": 1, "k4": 1}
    assert table.fsck() == []


def test_duplicates_go_with_their_commits(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not removed: the refusal says what works, and changes nothing."""
    known = values(table)
    nothing = pa.array([], pa.string())
    with monkeypatch.context() as patch:
        patch.setattr(
            BloomStateIndex, "locate", lambda self, _, keys: pa.nulls(len(keys), nothing.type)
        )
        table.upsert([row("k0", 9)])
    assert "duplicate-keys" in codes(table)
    before = tree(table.path)
    with pytest.raises(InvalidConfig, match=r"deduplicate.*merge-on-read.*Table\.restore"):
        Table.open(table.path).fsck(repair="deduplicate")
    assert tree(table.path) == before
    (finding,) = Table.open(table.path).fsck()
    assert "undo the commits that doubled them (Table.restore)" in finding.fix
    table.restore(table.history()["requested_time"].iloc[-2])
    assert values(table) == known
    assert table.fsck() == []


def other_group(table: Table) -> str:
    """Return a second file group of partition a, with the keys n0 to n2, and no log."""
    before = {piece.file_id for piece in table._handle.file_groups()}
    table.bulk_insert([row(f"n{n}", 1) for n in range(3)])
    (new,) = {piece.file_id for piece in Table.open(table.path)._handle.file_groups()} - before
    return new


def ours(table: Table) -> dict[str, int]:
    """Return the value of each row, of which no key may have two, as this library reads them."""
    found = Table.open(table.path).to_arrow(meta=False).to_pylist()
    values = {r["id"]: r["v"] for r in found}
    assert len(values) == len(found)
    return values


def test_a_copy_in_another_file_group_shows_no_rows(table: Table) -> None:
    """Its keys would have two rows, here as for other readers, and the next write would keep them.

    A base file with another's content is refused, too.
    """
    file_id = other_group(table)
    table.upsert([row("k0", 4)])
    before = values(table)
    log = logs(table)[-1]
    stray = Path(shutil.copy(log, renamed(log, file_id=file_id)))
    assert ours(table) == before
    assert codes(table) == ["orphan-file"]
    Table.open(table.path).upsert([row("n1", 5), row("k0", 5)])
    after = {**before, "n1": 5, "k0": 5}
    assert ours(table) == after
    table.compact()
    assert ours(table) == after
    table.fsck(repair=True)
    assert not stray.exists()
    assert values(table) == after
    assert codes(table) == []


def test_a_copy_of_another_instant_is_refused(table: Table) -> None:
    """A commit with base files only names no log; the copy's older rows would be the newest."""
    other_group(table)
    before = values(table)
    newest = str(table.history()["requested_time"].iloc[-1])
    log = logs(table)[0]
    stray = Path(shutil.copy(log, renamed(log, instant_time=newest)))
    for call in (Table.to_arrow, Table.compact, lambda t: t.upsert([row("k0", 9)])):
        with pytest.raises(InvalidTable, match=rf"{stray.name} has the content of another log"):
            call(Table.open(table.path))
    assert codes(table) == ["damaged-log", "orphan-file"]
    table.fsck(repair=True)
    assert not stray.exists()
    assert values(table) == before
    assert codes(table) == []
