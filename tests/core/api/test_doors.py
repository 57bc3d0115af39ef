"""Input that is refused: names, types and folders that would fail or mislead later."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from hoodie_nb import Table
from hoodie_nb.definition.property_file import PATH as PROPERTIES
from hoodie_nb.errors import InvalidConfig, InvalidInput, InvalidTable
from hoodie_nb.stream.checkpoint_folder import checkpoint_folder

STRUCT = pa.struct([("a", pa.int32())])


def create(path: Path, *fields: pa.Field, **more: object) -> Table:
    """Create a table with a key, an ordering column and these fields."""
    schema = pa.schema([("id", pa.string()), ("ts", pa.int64()), *fields])
    return Table.create(path / "t", schema=schema, record_key="id", **{"ordering": "ts"} | more)


NAMES = {
    "a dot": pa.field("a.b", pa.int32()),
    "a dot, then a digit": pa.field("a.1", pa.int32()),
    "a space": pa.field("a b", pa.int32()),
    "nothing": pa.field("", pa.int32()),
    "a line break at the end": pa.field("a\n", pa.int32()),
    "not ASCII": pa.field("größe", pa.int32()),
    "a dot in a struct": pa.field("s", pa.struct([("a.b", pa.int32())])),
    "a digit in a struct": pa.field("s", pa.struct([("1", pa.int32())])),
    "nothing in a struct": pa.field("s", pa.struct([("", pa.int32())])),
    "in a list": pa.field("s", pa.list_(pa.struct([("a-b", pa.int32())]))),
    "in a map": pa.field("s", pa.map_(pa.string(), pa.struct([("a b", pa.int32())]))),
    "in a struct of a struct": pa.field("s", pa.struct([("t", pa.struct([("1a", STRUCT)]))])),
}


@pytest.mark.parametrize("case", NAMES)
def test_every_field_name_is_one_that_avro_allows(tmp_path: Path, case: str) -> None:
    """A name on which other readers fail is refused anywhere in the schema."""
    with pytest.raises(InvalidInput, match="name that Avro does not allow: rename it"):
        create(tmp_path, NAMES[case])
    assert not (tmp_path / "t").exists()


TWICE = {
    "in a struct": pa.struct([("a", pa.int32()), ("a", pa.string())]),
    "but for case": pa.struct([("a", pa.int32()), ("A", pa.string())]),
    "in a list": pa.list_(pa.struct([("a", pa.int32()), ("A", pa.string())])),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_struct_names_each_field_once(tmp_path: Path, case: str) -> None:
    """Two fields of a struct with one name are refused, as two columns are."""
    with pytest.raises(InvalidInput, match=r"'s\.a'.* same name.* rename one"):
        create(tmp_path, pa.field("s", TWICE[case]))


NESTED = {"struct": STRUCT, "list": pa.list_(pa.int32()), "map": pa.map_(pa.string(), pa.int32())}


@pytest.mark.parametrize("case", NESTED)
def test_an_ordering_column_has_an_order(tmp_path: Path, case: str) -> None:
    """Structs, lists and maps cannot order rows: refused when the table is created or written."""
    field = pa.field("o", NESTED[case])
    with pytest.raises(InvalidConfig, match="ordering column 'o' has type"):
        create(tmp_path, field, ordering="o")
    table = create(tmp_path, field)
    set_property(table, "hoodie.table.precombine.field", "o")
    rows = pa.Table.from_pylist([{"id": "a", "ts": 1, "o": None}], table.schema)
    with pytest.raises(InvalidTable, match=r"ordering column 'o' has type"):
        Table.open(table.path).upsert(rows)
    assert Table.open(table.path).to_arrow().num_rows == 0


def test_an_ordering_column_that_the_table_lacks(tmp_path: Path) -> None:
    """Hudi lets a table name an ordering column (`ts` by default) that it does not have."""
    table = create(tmp_path)
    rows = pa.Table.from_pylist([{"id": "a", "ts": 1}], table.schema)
    set_property(table, "hoodie.table.precombine.field", "when")
    with pytest.raises(InvalidTable, match=r"ordering column 'when' is not in the schema"):
        Table.open(table.path).upsert(rows)


def set_property(table: Table, name: str, value: str) -> None:
    """Change one of the table's properties, as another engine may have."""
    file = Path(table.path, PROPERTIES)
    lines = [line for line in file.read_text().splitlines() if not line.startswith(f"{name}=")]
    file.write_text("\n".join([*lines, f"{name}={value}", ""]))


NOT_NULL = {
    "column": pa.field("v", pa.int32(), nullable=False),
    "in a struct": pa.field("v", pa.struct([pa.field("a", pa.int32(), nullable=False)])),
    "items of a list": pa.field("v", pa.list_(pa.field("item", pa.int32(), nullable=False))),
    "values of a map": pa.field(
        "v", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))
    ),
}


@pytest.mark.parametrize("case", NOT_NULL)
def test_columns_that_must_not_be_null_are_refused(tmp_path: Path, case: str) -> None:
    """Stored columns may be null, so a schema that says otherwise is refused, with the fix."""
    with pytest.raises(InvalidInput, match=r"'v[^']*'\] are NOT NULL.*nullable=True"):
        create(tmp_path, NOT_NULL[case])


def test_a_key_column_may_be_not_null(tmp_path: Path) -> None:
    """A single key column is never null anyway, so `NOT NULL` is accepted there."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert(pa.Table.from_pylist([{"id": 1, "v": None}], schema))
    with pytest.raises(InvalidInput, match="null or empty"):
        table.upsert(pa.table({"id": pa.array([None], pa.int64()), "v": pa.array([1])}))


def test_data_may_be_declared_not_null(tmp_path: Path) -> None:
    """The nullability declared in a batch is ignored: Spark declares every literal not null."""
    table = create(tmp_path, pa.field("v", pa.int32()))
    strict = pa.schema([f.with_nullable(False) for f in table.schema])
    assert table.upsert(pa.Table.from_pylist([{"id": "a", "ts": 1, "v": 1}], strict)) is not None


DECIMALS = [pa.decimal128(5, -2), pa.decimal128(3, 5)]


@pytest.mark.parametrize("kind", DECIMALS)
def test_a_decimal_that_parquet_cannot_hold(tmp_path: Path, kind: pa.DataType) -> None:
    """A scale below 0 or above the precision is refused when the table is created."""
    with pytest.raises(InvalidInput, match=r"'v' has type decimal128.*cast it first"):
        create(tmp_path, pa.field("v", kind))


def test_a_schema_has_a_maximum_depth(tmp_path: Path) -> None:
    """A type nested deeper than any engine supports is refused and does not crash the process."""
    kind = pa.int32()
    for _ in range(900):
        kind = pa.list_(kind)
    with pytest.raises(InvalidInput, match="'v' is nested deeper than"):
        create(tmp_path, pa.field("v", kind))


INSIDE = {
    "in the table": lambda table: table / "ck",
    "deep in the table": lambda table: table / "x" / "y" / "ck",
    "the table itself": lambda table: table,
    "by a link": lambda table: link(table.parent / "link", table) / "ck",
    "by dots": lambda table: table / ".." / "t" / "ck",
    "around the table": lambda table: table.parent,
}


def link(path: Path, target: Path) -> Path:
    """Create a link and return it."""
    path.symlink_to(target)
    return path


@pytest.mark.parametrize("case", INSIDE)
def test_a_checkpoint_folder_is_apart_from_the_table(tmp_path: Path, case: str) -> None:
    """Neither may contain the other: one would delete or list the files of the other."""
    table = create(tmp_path)
    with pytest.raises(InvalidConfig, match=r"checkpoint=.* choose a separate folder"):
        checkpoint_folder(str(INSIDE[case](Path(table.path))), table.path)
    assert checkpoint_folder(str(tmp_path / "t-ck"), table.path) == str(tmp_path / "t-ck")


def test_the_schema_in_the_properties_is_what_was_asked_for(tmp_path: Path) -> None:
    """An accepted schema is stored with the same names."""
    table = create(tmp_path, pa.field("s", pa.struct([("a", pa.int32()), ("b_1", STRUCT)])))
    text = Path(table.path, PROPERTIES).read_text()
    line = next(x for x in text.splitlines() if x.startswith("hoodie.table.create.schema="))
    assert [f["name"] for f in json.loads(line.partition("=")[2])["fields"]] == ["id", "ts", "s"]
