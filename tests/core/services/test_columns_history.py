"""What the services do with the commit that added columns, and readers before and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from archives import FEW, active, archived
from tables import hudi_rows, kind_of, rows_by, schema_of, without_meta

from hoodie_nb import InvalidConfig, Table
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.on_spark.sources import ChangeStream, SnapshotReader
from hoodie_nb.reading.changes import changes_schema

pytestmark = pytest.mark.usefixtures("many_logs")
OLD = schema_of()
NEW = OLD.append(pa.field("w", pa.string()))
VERSIONS = pytest.mark.parametrize("version", [6, 8, 9, "8 logs", "9 logs"])


def row(ts: int, **more: Any) -> dict[str, Any]:
    """Return a version of the one record."""
    return {"id": "a", "p": "x", "ts": ts, "v": ts, **more}


def made(path: Path, version: int | str, **options: object) -> Table:
    """Return a table with one row."""
    keys: dict[str, Any] = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    table = Table.create(path / "t", schema=OLD, **kind_of(version, **options), **keys)
    table.upsert([row(1)])
    return table


@VERSIONS
@pytest.mark.parametrize("undo", ["rollback", "restore"])
def test_the_columns_go_with_their_commit(tmp_path: Path, version: int | str, undo: str) -> None:
    """Undoing the commit takes the columns away; they can be added again, with other types."""
    table = made(tmp_path, version)
    first = table.history()["requested_time"].iloc[0]
    table.add_columns({"w": pa.string(), "v": pa.float64()})
    if undo == "rollback":
        table.rollback()
    else:
        table.upsert([row(2, w="lost")])
        table.restore(first)
    assert table.schema.equals(OLD) and rows_by(table, "id") == [row(1)]
    table.add_columns({"w": pa.int64()})
    table.upsert([row(3, w=3)])
    assert rows_by(table, "id") == [row(3, w=3)] and table.fsck() == []


@VERSIONS
def test_a_merged_batch_that_is_undone_takes_its_columns(
    tmp_path: Path, version: int | str
) -> None:
    """Rows, columns and wider types of the instant are gone."""
    table = made(tmp_path, version)
    wide = pa.Table.from_pylist([row(2, w="x")], NEW)
    table.upsert(wide, schema="merge")
    table.rollback()
    assert table.schema.equals(OLD) and rows_by(table, "id") == [row(1)] and table.fsck() == []


@VERSIONS
def test_a_savepoint_of_the_commit_is_restored(tmp_path: Path, version: int | str) -> None:
    """A savepoint may be of a commit without files: its columns and rows come back."""
    table = made(tmp_path, version)
    commit = table.add_columns({"w": pa.string()})
    table.savepoint(commit)
    table.upsert([row(2, w="x", more=1)], schema="merge")
    table.restore(commit)
    assert table.schema.equals(NEW) and rows_by(table, "id") == [row(1, w=None)]
    assert table.fsck() == []


@VERSIONS
def test_archiving_and_cleaning_keep_the_columns(tmp_path: Path, version: int | str) -> None:
    """The newest commit has the schema: that of the change itself, or of any later write."""
    table = made(tmp_path, version, **FEW)
    for number in range(6):
        table.add_columns({f"w{number}": pa.string()})
    action = "deltacommit" if isinstance(version, str) else "commit"
    assert len(archived(table.path, action)) >= 3 and table.schema.names[4:] == [
        f"w{n}" for n in range(6)
    ]
    new = {f"w{n}": None for n in range(6)}
    assert rows_by(table, "id") == [row(1, **new)]
    for ts in range(2, 7):
        table.upsert([row(ts, **new)])
    assert len(active(table.path, action)) <= (3 if action == "commit" else 5)  # logs keep theirs
    table.clean(commits=1)
    assert table.schema.names[4:] == [*new] and rows_by(table, "id") == [row(6, **new)]
    assert table.fsck() == []


@VERSIONS
def test_readers_of_earlier_moments(tmp_path: Path, version: int | str) -> None:
    """They see the rows of then with the columns of now; adding columns changes no row."""
    table = made(tmp_path, version)
    first = table.history()["requested_time"].iloc[0]
    added = table.add_columns({"w": pa.string(), "v": pa.float64()})
    table.upsert([row(2, w="x")])
    wanted = {**row(1, w=None), "v": 1.0}
    for moment in (first, added):
        assert table.to_arrow(as_of=moment, meta=False).to_pylist() == [wanted]
    assert without_meta(table.to_arrow(as_of=added)) == hudi_rows(table.path, added.requested_time)
    assert table.changes(since=first, until=added).num_rows == 0
    (change,) = table.changes(since=first).to_pylist()
    assert (change["_change"], change["w"], change["v"]) == ("update", "x", 2.0)
    (change, *_) = table.changes(since="earliest", until=added).to_pylist()
    assert (change["_change"], change["w"]) == ("insert", None)


@VERSIONS
def test_index_clustering_and_conditions_after_it(tmp_path: Path, version: int | str) -> None:
    """What reads the old files for a write finds keys and values, and rewrites them as they are."""
    table = made(tmp_path, version)
    table.bulk_insert([{**row(1), "id": "b"}])
    table.add_columns({"w": pa.string(), "v": pa.float64()})
    table.rebuild_index()
    assert table.index_status().files == 2
    table.update(where="id = 'b'", set={"w": "'set'"})
    table.cluster()
    table.upsert([{**row(2, w="again")}])
    table.delete(where="w is null")
    wanted = [{**row(2, w="again")}, {**row(1, w="set"), "id": "b"}]
    assert rows_by(table, "id") == wanted and table.fsck() == []


def test_the_completed_file_of_added_columns_is_missed(tmp_path: Path) -> None:
    """If it is lost, `fsck` says so although the commit has no file that could be missing."""
    table = made(tmp_path, 6)
    commit = table.add_columns({"w": pa.string()})
    table.upsert([row(2, w="x")])
    assert commit is not None
    Path(table.path, ".hoodie", f"{commit.requested_time}.commit").unlink()
    assert any(commit.requested_time in str(finding) for finding in table.fsck())


@VERSIONS
@pytest.mark.parametrize("unfit", [0.5, "many"])
def test_a_stream_of_changes_keeps_its_types(
    tmp_path: Path, version: int | str, unfit: float | str
) -> None:
    """Rows of files with wider types have those of its start; a value that does not fit says so."""
    table = made(tmp_path, version)
    columns = changes_schema(open_table(table.path))
    stream = ChangeStream(table.path, columns, "earliest")

    def read(start: str) -> tuple[str, list[Any]]:
        end = stream.latestOffset({"instant": start}, None)
        parts = stream.partitions({"instant": start}, end)
        batches = [batch for part in parts for batch in stream.read(part)]
        assert all(batch.schema.equals(columns) for batch in batches)
        return end["instant"], [value for batch in batches for value in batch["v"].to_pylist()]

    first, found = read("")
    assert found == [1]
    table.add_columns({"v": pa.scalar(unfit).type})
    table.upsert([row(2) | {"v": type(unfit)(2)}])
    second, found = read(first)
    assert found == [2]
    table.upsert([row(3) | {"v": unfit}])
    with pytest.raises(InvalidConfig, match="start the query again"):
        read(second)


@VERSIONS
def test_a_loaded_snapshot_keeps_its_types(tmp_path: Path, version: int | str) -> None:
    """A frame of before a change reads new files; for other values it must be loaded again."""
    table = Table.create(
        tmp_path / "t",
        schema={"id": pa.string(), "v": pa.int32(), "f": pa.float32()},
        record_key="id",
        **kind_of(version),
    )
    table.upsert(pa.Table.from_pylist([{"id": "a", "v": 1, "f": 0.1}], table.schema))
    old = stored_schema(table.schema)

    def read(columns: pa.Schema) -> list[dict[str, Any]]:
        reader = SnapshotReader(table.path, columns, None)
        tasks = reader.partitions()
        return [row for t in tasks for b in reader.read(t) for row in b.to_pylist()]

    table.add_columns({"v": pa.float64(), "f": pa.float64(), "w": pa.string()})
    table.upsert([{"id": "b", "v": 2.0, "f": 0.1, "w": "x"}])
    narrow = pa.scalar(0.1, pa.float32()).as_py()
    wanted = {"a": (1, narrow), "b": (2, narrow)}
    assert {row["id"]: (row["v"], row["f"]) for row in read(old)} == wanted
    wide = stored_schema(table.schema)
    table.rollback()
    table.rollback()
    assert [(row["v"], row["w"]) for row in read(wide)] == [(1, None)]
    table.add_columns({"v": pa.float64(), "f": pa.float64()})
    for change in ({"v": 0.5, "f": 1.0}, {"v": 1.0, "f": 1 / 3}):
        table.upsert([{"id": "c"} | change])
        with pytest.raises(InvalidConfig, match="load the table or start the query again"):
            read(old)


FLOAT, DOUBLE = pa.float32(), pa.float64()
INSIDE = {
    "struct": (lambda kind: pa.struct({"a": kind, "b": pa.string()}), lambda v: {"a": v, "b": "x"}),
    "list": (pa.list_, lambda v: [0.0, v]),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda v: [("k", v)]),
    "lists in a map": (
        lambda kind: pa.map_(pa.string(), pa.list_(kind)),
        lambda v: [("k", [v, None]), ("none", None)],
    ),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_a_double_inside_another_value_is_not_rounded(tmp_path: Path, kind: str) -> None:
    """A frame of before the change reads what is still a float, at any depth, or says so."""
    of, held = INSIDE[kind]
    table = Table.create(
        tmp_path / "t", schema={"id": pa.string(), "v": of(FLOAT)}, record_key="id"
    )

    def write(key: str, value: float) -> None:
        table.upsert(
            pa.table({"id": [key], "v": pa.array([held(value)], table.schema.field(1).type)})
        )

    def read(columns: pa.Schema) -> dict[str, Any]:
        reader = SnapshotReader(table.path, columns, None)
        batches = [b for task in reader.partitions() for b in reader.read(task)]
        return {row["id"]: row["v"] for b in batches for row in b.to_pylist()}

    write("a", 0.1)
    before, old = stored_schema(table.schema), read(stored_schema(table.schema))
    table.add_columns({"v": of(DOUBLE)})
    write("b", 0.5)
    write("c", float("nan"))
    found = read(before)
    assert (found["a"], found["b"], "nan" in str(found["c"])) == (old["a"], held(0.5), True)
    write("d", 0.1)
    with pytest.raises(InvalidConfig, match=r"'v' .*double.*float.*rounded.*load the table"):
        read(before)
    assert read(stored_schema(table.schema))["d"] == held(0.1)
