"""The fix that fsck names works for each finding: the tests follow it literally."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import edited_elsewhere, hudi_rows, schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.files.base_file import BLOOM, MAX_KEY
from hoodie_nb.files.bloom import BloomFilter

SCHEMA = schema_of()
HELD = (("a", "x", 1), ("b", "x", 1), ("c", "y", 1))
TINY = {"hoodie.parquet.small.file.limit": 0}


def rows(*given: tuple[str, str, int]) -> pa.Table:
    """Return rows from (id, p, ts)."""
    return pa.Table.from_pylist(
        [{"id": k, "p": p, "ts": ts, "v": ts} for k, p, ts in given], SCHEMA
    )


def create(path: Path, ordering: str | None = "ts") -> Table:
    """Return an empty table in which every batch of new keys creates its own file group."""
    return Table.create(
        path, schema=SCHEMA, record_key="id", partition_by="p", ordering=ordering, options=TINY
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table of three rows in two partitions."""
    made = create(tmp_path / "t")
    made.upsert(rows(*HELD))
    return made


def file_of(table: Table, partition: str) -> Path:
    """Return the newest base file of a partition's one file group."""
    (name,) = table.file_groups().query("partition_path == @partition")["file_name"]
    return Path(table.path, partition, name)


def with_footer(file: Path, **entries: str) -> None:
    """Write a file again with other entries in its footer; its commit says the new size."""
    stored = pq.ParquetFile(file)
    content, old = stored.read(), dict(stored.metadata.metadata)
    with pq.ParquetWriter(file, content.schema, store_schema=False) as writer:
        writer.write_table(content)
        writer.add_key_value_metadata({**old, **{k.encode(): v for k, v in entries.items()}})
    commit = Path(file.parents[1], ".hoodie", f"{file.stem.rpartition('_')[2]}.commit")
    metadata = json.loads(commit.read_bytes())
    for stat in metadata["partitionToWriteStats"][file.parent.name]:
        if stat["path"].endswith(file.name):
            stat["fileSizeInBytes"] = file.stat().st_size
    edited_elsewhere(commit, metadata)


def follow(table: Path, fix: str, backup: Path) -> None:
    """Apply the fix of a finding."""
    call = re.search(r"call (Table\.open\(path\)\.\w+\([\w=\"]*\))", fix)
    if "from a backup" in fix:
        shutil.copytree(backup, table, dirs_exist_ok=True)
    elif call:
        eval(call[1], {"Table": Table, "path": table})
    else:
        raise AssertionError(f"unknown fix {fix!r}")


def bloom_of(*keys: str) -> str:
    """Return a bloom filter of these keys as footer text."""
    bloom = BloomFilter.sized(1024, 1e-9)
    bloom.add(pa.array(keys, pa.string()))
    return bloom.to_text()


def cut(file: Path) -> None:
    """Remove the last bytes of a file."""
    file.write_bytes(file.read_bytes()[:-9])


def pending(table: Table) -> None:
    """Leave a pending instant as a dead writer would, with markers and staged files."""
    meta = Path(table.path, ".hoodie")
    for name in ("20990101000000000.commit.requested", "20990101000000000.inflight"):
        (meta / name).touch()
    for folder in (".temp/20990101000000000", ".hoodie_nb/staged/20990101000000000-dead"):
        (meta / folder).mkdir(parents=True)


def stray(table: Table) -> Path:
    """Return the path of a base file that no commit names, made by copying one."""
    file = file_of(table, "x")
    return Path(shutil.copy(file, file.with_name(f"0-0-0{file.name}")))


FINDINGS: dict[str, Callable[[Table], object]] = {
    "metadata of a partition": lambda t: Path(t.path, "x/.hoodie_partition_metadata").unlink(),
    "bloom misses keys": lambda t: with_footer(file_of(t, "x"), **{BLOOM: bloom_of("other")}),
    "bloom is junk": lambda t: with_footer(file_of(t, "x"), **{BLOOM: "no bloom"}),
    "range leaves out keys": lambda t: with_footer(file_of(t, "x"), **{MAX_KEY: "a"}),
    "file is missing": lambda t: file_of(t, "x").unlink(),
    "file is cut off": lambda t: cut(file_of(t, "x")),
    "file holds something else": lambda t: file_of(t, "x").write_bytes(b"x" * 9999),
    "instant is pending": pending,
    "folder is staged": lambda t: Path(t.path, ".hoodie/.hoodie_nb/staged/1-x").mkdir(parents=True),
    "scratch is left": lambda t: Path(t.path, ".hoodie/.hoodie_nb/tmp/1").write_bytes(b""),
    "markers are left": lambda t: Path(t.path, ".hoodie/.temp/1").mkdir(parents=True),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_the_fix_of_each_finding_works(table: Table, tmp_path: Path, case: str) -> None:
    """After the fix the finding is gone, no row is lost, and an upsert duplicates no row."""
    shutil.copytree(table.path, tmp_path / "backup")
    FINDINGS[case](table)
    findings = Table.open(table.path).fsck()
    assert findings
    for finding in findings:
        follow(Path(table.path), finding.fix, tmp_path / "backup")
    again = Table.open(table.path)
    assert again.fsck() == []
    assert without_meta(again.to_arrow()) == hudi_rows(table.path) == without_meta(rows(*HELD))
    assert again.fsck(repair=True) == []
    shutil.rmtree(Path(table.path, ".hoodie/.hoodie_nb/index"), ignore_errors=True)
    newer = rows(*((k, p, 2) for k, p, _ in HELD))
    again.upsert(newer)
    assert without_meta(again.to_arrow()) == hudi_rows(table.path) == without_meta(newer)


def test_a_file_in_no_commit_is_to_be_moved_or_deleted(table: Table) -> None:
    """A base file that no commit names is a finding; its commit decides which is safe."""
    file = stray(table)
    (finding,) = [f for f in table.fsck() if "in no commit" in f.what]
    assert file.name in finding.what
    assert "delete it" in finding.fix
    file.unlink()
    assert table.fsck() == []


BATCH = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.sampled_from("xy"), st.one_of(st.none(), st.integers(0, 3))
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("ordering", ["ts", None])
def test_the_fix_of_duplicate_keys_works(
    new_folder: Callable[[], Path], ordering: str | None
) -> None:
    """Of each key the row with the greatest ordering value is kept, of equal ones the newest."""

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.lists(BATCH, min_size=2, max_size=4))
    def check(batches: list[list[tuple[str, str, int | None]]]) -> None:
        table, held = create(new_folder() / "t", ordering), {}
        stored = 0
        for number, batch in enumerate(batches):
            given_rows = [
                {"id": k, "p": p, "ts": ts, "v": 100 * number + at}
                for at, (k, p, ts) in enumerate(batch)
            ]
            stored += len(batch)
            table.insert(pa.Table.from_pylist(given_rows, SCHEMA))
            for row in given_rows:
                name, rank = (row["p"], row["id"]), -1 if row["ts"] is None else row["ts"]
                before = held.get(name)
                before_rank = -1 if before is None or before["ts"] is None else before["ts"]
                if before is None or ordering is None or rank >= before_rank:
                    held[name] = row
        doubled = [f for f in table.fsck() if "duplicate keys" in f.what]
        assert bool(doubled) == (stored > len(held))
        for finding in doubled:
            follow(Path(table.path), finding.fix, Path())
        expected = without_meta(pa.Table.from_pylist([*held.values()], SCHEMA))
        again = Table.open(table.path)
        assert without_meta(again.to_arrow()) == hudi_rows(table.path) == expected
        assert again.fsck() == []
        again.delete(again.to_arrow(meta=False))
        assert again.to_arrow().num_rows == 0

    check()


def test_repair_keeps_duplicate_keys_unless_asked(table: Table) -> None:
    """A table with intended duplicate keys is repaired without losing a row."""
    table.insert(rows(("a", "x", 1)))
    Path(table.path, "x/.hoodie_partition_metadata").unlink()
    found = Table.open(table.path).fsck(repair=True)
    assert [f.code for f in found if not f.repaired] == ["duplicate-keys"]
    assert Table.open(table.path).to_arrow().num_rows == 4
    (found,) = Table.open(table.path).fsck(repair="deduplicate")
    assert (found.code, found.repaired) == ("duplicate-keys", "rewritten")
    assert Table.open(table.path).to_arrow().num_rows == 3
    assert Table.open(table.path).fsck() == []


@pytest.mark.parametrize("name", ["_row", "_position"])
def test_duplicates_of_a_table_with_any_column_name_are_removed(tmp_path: Path, name: str) -> None:
    """The names of the repair's own columns are reserved: `_row` may be the ordering column."""
    schema = pa.schema([("id", pa.string()), (name, pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id", ordering=name)
    for value in (2, 1):
        table.insert(pa.table({"id": ["a"], name: [value]}, schema=schema))
    assert all(finding.repaired for finding in table.fsck(repair="deduplicate"))
    assert table.to_arrow(meta=False).to_pylist() == [{"id": "a", name: 2}]
    assert table.fsck() == []
