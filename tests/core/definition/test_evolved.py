"""Schemas that another engine has evolved by ALTER TABLE: read by name, or refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tables import commit_content, edited_elsewhere, tree

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("v", pa.int64()),
        ("place", pa.struct([("city", pa.string())])),
        ("tags", pa.list_(pa.struct([("word", pa.string())]))),
    ]
)
FIRST: dict[str, Any] = {  # as Hudi writes it
    "version_id": 0,
    "type": "record",
    "fields": [
        {"id": 5, "name": "id", "type": "string"},
        {"id": 6, "name": "v", "type": "long"},
        {
            "id": 7,
            "name": "place",
            "type": {"type": "record", "fields": [{"id": 8, "name": "city", "type": "string"}]},
        },
        {
            "id": 9,
            "name": "tags",
            "type": {
                "type": "array",
                "element_id": 10,
                "element": {
                    "type": "record",
                    "fields": [{"id": 11, "name": "word", "type": "string"}],
                },
            },
        },
    ],
}


def rename(fields: list[Any]) -> None:
    """Rename a column."""
    fields[1]["name"] = "w"


def rename_inside(fields: list[Any]) -> None:
    """Rename a field of a struct."""
    fields[2]["type"]["fields"][0]["name"] = "town"


def rename_deep(fields: list[Any]) -> None:
    """Rename a field of the structs in a list."""
    fields[3]["type"]["element"]["fields"][0]["name"] = "text"


def drop_and_add(fields: list[Any]) -> None:
    """Drop a column, and add another one of its name."""
    fields[1] = {"id": 12, "name": "v", "type": "long"}


def harmless(fields: list[Any]) -> None:
    """Add, drop, move and widen columns."""
    fields[1]["type"] = "double"
    fields[:] = [{"id": 12, "name": "x", "type": "string"}, fields[1], fields[0], fields[3]]


@pytest.fixture
def evolved(tmp_path: Path) -> Callable[[Callable[[list[Any]], None]], Table]:
    """A function that evolves the schema of a table with one row."""

    def evolve(change: Callable[[list[Any]], None]) -> Table:
        table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
        row = {"id": "a", "v": 1, "place": {"city": "x"}, "tags": [{"word": "y"}]}
        table.upsert(pa.Table.from_pylist([row], schema=SCHEMA))
        latest = copy.deepcopy(FIRST)
        change(latest["fields"])
        (commit,) = Path(table.path, ".hoodie").glob("*.commit")
        content = commit_content(commit)
        content["extraMetadata"]["latest_schema"] = json.dumps(latest)
        edited_elsewhere(commit, content)
        folder = Path(table.path, ".hoodie/.schema")
        folder.mkdir()
        versions = json.dumps({"schemas": [latest, FIRST]})
        (folder / "20260101000000000.schemacommit").write_text(json.dumps({"schemas": [FIRST]}))
        (folder / f"{commit.stem}.schemacommit").write_text(versions)
        return Table.open(table.path)

    return evolve


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (rename, "'v' is 'w' now"),
        (rename_inside, "'place.city' is 'place.town' now"),
        (rename_deep, "'tags.word' is 'tags.text' now"),
        (drop_and_add, "'v' is a different column now"),
    ],
)
def test_a_column_with_another_name_in_older_files_is_refused(evolved, change, names):
    """Nulls or values of another column are not returned: reads and writes name the column."""
    table = evolved(change)
    for act in (
        table.to_arrow,
        lambda: table.changes(since="earliest"),
        lambda: table.upsert([{"id": "a"}]),
        lambda: table.schema,
    ):
        with pytest.raises(InvalidTable, match=names):
            act()


def test_other_changes_are_read_but_not_written(evolved):
    """Rows are read by name; a commit of ours would lose the ids, so it is refused."""
    table = evolved(harmless)
    before = tree(table.path)
    assert table.to_arrow(["id", "v"]).to_pylist() == [{"id": "a", "v": 1}]
    with pytest.raises(InvalidTable, match=r"evolved by ALTER TABLE .*write it with that engine"):
        table.delete(["a"])
    names = {name for name in tree(table.path) if ".hoodie_nb" not in name}
    assert names == {name for name in before if ".hoodie_nb" not in name}


@pytest.mark.parametrize("content", [None, "{", '{"schemas": [{"fields": [{"id": 1}]}]}', "[]"])
def test_versions_that_cannot_be_read_name_their_file(evolved, content):
    """Without the older names nobody knows whether a column was renamed; restored, it is read."""
    table = evolved(harmless)
    kept = {f: f.read_bytes() for f in Path(table.path, ".hoodie/.schema").iterdir()}
    for file in kept:
        file.unlink() if content is None else file.write_text(content)
    with pytest.raises(InvalidTable, match=r"\.schema/.*schemacommit .* restore it"):
        table.to_arrow()
    for file, whole in kept.items():
        file.write_bytes(whole)
    assert table.to_arrow(["id", "v"]).to_pylist() == [{"id": "a", "v": 1}]
