"""Tables of Java Hudi whose columns are NOT NULL: writes and merges make them nullable."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import hudi_rows, without_meta

from hoodie_nb import Table

FIXTURES = Path(__file__).parents[2] / "fixtures"


def strict(field: pa.Field) -> pa.Field:
    """Return a field that is NOT NULL, as are all inside it."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([strict(inner) for inner in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(strict(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, strict(kind.item_field))
    return pa.field(field.name, kind, nullable=False)


def without_null(avro: Any) -> Any:
    """Return an Avro schema without the nulls of its unions, and without defaults."""
    if isinstance(avro, dict):
        return {name: without_null(part) for name, part in avro.items() if name != "default"}
    if isinstance(avro, list):
        parts = [without_null(part) for part in avro if part != "null"]
        return parts[0] if len(parts) == 1 else parts
    return avro


def as_if_strict(root: Path) -> Table:
    """Return a table after all columns of its files and commits were made NOT NULL."""
    for file in root.rglob("*.parquet"):
        stored = pq.ParquetFile(file)
        rows = stored.read()
        schema = pa.schema([strict(f) if f.name[0] != "_" else f for f in rows.schema])
        with pq.ParquetWriter(file, schema, store_schema=False) as writer:
            writer.write_table(rows.cast(schema))
            writer.add_key_value_metadata(stored.metadata.metadata)
    for file in root.glob(".hoodie/*.commit"):
        commit = json.loads(file.read_text())
        commit["extraMetadata"]["schema"] = json.dumps(
            without_null(json.loads(commit["extraMetadata"]["schema"]))
        )
        for status in (s for each in commit["partitionToWriteStats"].values() for s in each):
            status["fileSizeInBytes"] = (root / status["path"]).stat().st_size
        file.write_text(json.dumps(commit))
    return Table.open(root)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a copy of a table that Java Hudi made, with columns that are NOT NULL."""
    with zipfile.ZipFile(FIXTURES / "v6_nonpartitioned.zip") as archive:
        archive.extractall(tmp_path)
    table = as_if_strict(tmp_path / "v6_nonpartitioned")
    (path,) = {*table.file_groups()["file_name"]}
    fields = pq.ParquetFile(Path(table.path, path)).schema_arrow
    assert not any(f.nullable for f in fields if f.name[0] != "_")
    return table


def test_a_merge_updates_inserts_and_deletes(table: Table) -> None:
    """Rows of strict files are rewritten beside new ones, with nulls where a clause sets them."""
    before = table.to_arrow(meta=False)
    old = {row["id"]: row for row in before.to_pylist()}
    known, other, *_ = sorted(old)
    source = pa.Table.from_pylist(
        [old[known] | {"name": "new"}, old[other] | {"id": 99, "structField": None}], before.schema
    )
    merge = table.merge(source).when_matched_update(set={"name": "source.name", "intField": "NULL"})
    merge = merge.when_not_matched_insert()
    merge.when_not_matched_by_source_delete(where=f"id = {other}").execute()
    wanted = old | {known: old[known] | {"name": "new", "intField": None}}
    wanted[99] = old[other] | {"id": 99, "structField": None}
    del wanted[other]
    assert {row["id"]: row for row in table.to_arrow(meta=False).to_pylist()} == wanted
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) and table.fsck() == []


def test_inserts_by_name_leave_other_columns_null(table: Table) -> None:
    """Columns that a clause does not set are null, also where the table had NOT NULL."""
    ids = table.to_arrow(["id"])["id"].to_pylist()
    source = [{"id": 99, "name": "x"}]
    table.merge(source).when_not_matched_insert(set={"name": "source.name"}).execute()
    rows = {row["id"]: row for row in table.to_arrow(meta=False).to_pylist()}
    assert sorted(rows) == sorted([*ids, 99])
    assert {n for n, v in rows[99].items() if v is not None} == {"id", "name"}
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) and table.fsck() == []


def test_updates_deletes_and_upserts_write_nulls(table: Table) -> None:
    """The other writes do as well; an empty merge writes nothing."""
    assert table.merge([]).when_matched_delete().execute() is None
    rows = table.to_arrow(meta=False).to_pylist()
    table.update(where=f"id = {rows[0]['id']}", set={"arrayField": "NULL"})
    table.upsert([rows[1] | {"mapField": None, "longField": rows[1]["longField"] + 1}])
    table.delete(f"id = {rows[2]['id']}")
    found = {row["id"]: row for row in table.to_arrow(meta=False).to_pylist()}
    assert found[rows[0]["id"]]["arrayField"] is None and found[rows[1]["id"]]["mapField"] is None
    assert len(found) == len(rows) - 1
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) and table.fsck() == []
