"""Tables with another engine's layout are read, but not written, and the error says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import schema_of, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import InvalidTable
from hoodie_nb.view.file_groups import BaseFileName

SCHEMA = schema_of()
ROWS = pa.Table.from_pylist(
    [{"id": k, "p": p, "ts": 1, "v": 1} for k, p in (("a", "x"), ("b", "y"))], SCHEMA
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table of two partitions with one commit."""
    made = Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p", ordering="ts"
    )
    made.upsert(ROWS)
    return made


def rewrite(table: Table, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of all base files, meta columns included."""
    for file in Path(table.path).rglob("*.parquet"):
        stored = pq.ParquetFile(file)
        rows = change(stored.read())
        with pq.ParquetWriter(file, rows.schema, store_schema=False) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata(stored.metadata.metadata)


def column(name: str, change: Callable[[str], str]) -> Callable[[pa.Table], pa.Table]:
    """Return a change of one text column."""

    def changed(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index(name)
        return rows.set_column(at, name, pa.array(change(v) for v in rows.column(at).to_pylist()))

    return changed


def moved(table: Table, to: Callable[[str], str]) -> None:
    """Move every partition's folder; its rows name the new one."""
    rewrite(table, column("_hoodie_partition_path", to))
    for old in ("x", "y"):
        if to(old) == old:
            continue
        new = Path(table.path, to(old))
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(table.path, old), new)


def bucket_ids(table: Table) -> None:
    """Give the file groups ids like those of Hudi's bucket index: a number, then a random UUID."""
    for number, file in enumerate(sorted(Path(table.path).rglob("*.parquet"))):
        name = BaseFileName.parse(file.name)
        assert name is not None
        made = f"{number:08d}-5717-4562-b3fc-2c963f66afa6-0"
        rows = pq.ParquetFile(file).read()
        file.unlink()
        made_name = str(BaseFileName(made, name.write_token, name.instant_time))
        pq.write_table(rows, file.with_name(made_name))  # the other engine's own bytes


def properties(text: str) -> Callable[[Table], None]:
    """Return a function that adds lines to the table's properties."""

    def add(table: Table) -> None:
        with open(Path(table.path, ".hoodie/hoodie.properties"), "a") as file:
            file.write(text)
        Path(table.path, RULES).unlink()  # or the table would be ours, with damaged properties

    return add


FOREIGN: dict[str, tuple[Callable[[Table], None], str]] = {
    "bucket index by its ids": (bucket_ids, "bucket index"),
    "bucket index by its type": (properties("hoodie.index.type=BUCKET\n"), "hoodie.index.type"),
    "bucket index by an option": (
        properties("hoodie.bucket.index.num.buckets=4\n"),
        "hoodie.bucket.index.num.buckets",
    ),
    "consistent bucket index": (
        lambda table: Path(table.path, ".hoodie/.bucket_index").mkdir(),
        "bucket index",
    ),
    "dates by slashes, as a property": (
        properties("hoodie.datasource.write.slash.separated.date.partitioning=true\n"),
        "slash",
    ),
    "more levels than columns": (lambda t: moved(t, lambda p: f"2026/01/{p}"), "'2026/01/x'"),
    "one partition at another level": (
        lambda t: moved(t, lambda p: {"y": "z/y"}.get(p, p)),
        "'z/y'",
    ),
    "fewer levels than columns": (
        properties(
            "hoodie.table.partition.fields=p,v\nhoodie.table.recordkey.fields=id,ts\n"
            "hoodie.table.keygenerator.type=COMPLEX\nhoodie.table.keygenerator.class=\n"
        ),
        "'x'",
    ),
    "folders in Hive style": (lambda t: moved(t, lambda p: f"p={p}"), "'p=x'"),
    "partitions made of the value": (lambda t: moved(t, lambda p: f"{p}{p}"), "'xx'"),
    "keys of another text": (
        lambda t: rewrite(t, column("_hoodie_record_key", lambda k: f"id:{k}")),
        "'id:a'",
    ),
    "partitions of a time": (
        properties("hoodie.keygen.timebased.timestamp.type=UNIX_TIMESTAMP\n"),
        "hoodie.keygen.timebased",
    ),
    "class and type that differ": (
        properties(
            "hoodie.table.keygenerator.class=org.apache.hudi.keygen.TimestampBasedKeyGenerator\n"
        ),
        "TimestampBased",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_table_we_would_damage_is_refused_for_writing(table: Table, case: str) -> None:
    """A table with another layout is read; an upsert is refused with the reason."""
    spoil, named = FOREIGN[case]
    spoil(table)
    before = tree(table.path)
    again = Table.open(table.path)
    assert without_meta(again.to_arrow()) == without_meta(ROWS)
    for _ in range(2):  # a second attempt fails, too
        with pytest.raises(InvalidTable, match=r"write it with the engine") as raised:
            again.upsert(ROWS)
        assert named in str(raised.value)
    assert tree(table.path) == before


def test_a_damaged_file_does_not_make_a_table_foreign(table: Table) -> None:
    """The layout check skips an unreadable file; the error comes when its rows are needed."""
    for file in Path(table.path).rglob("*.parquet"):
        file.write_bytes(b"PAR1 not a parquet file PAR1")
    with pytest.raises(InvalidTable, match="cannot be read"):
        Table.open(table.path).upsert(ROWS)


def test_a_copied_partition_is_not_foreign(table: Table) -> None:
    """Rows that name another folder were copied: the check looks at the folder that they name."""
    shutil.rmtree(Path(table.path, "y"))
    shutil.copytree(Path(table.path, "x"), Path(table.path, "y"))
    found = Table.open(table.path).fsck(repair="accept_loss")
    assert "rewritten" in [finding.repaired for finding in found]  # the lost file of y
    assert Table.open(table.path).upsert(ROWS) is not None


@pytest.mark.parametrize(
    ("raw", "logical"),
    [
        ("long", "local-timestamp-millis"),
        ("int", "time-millis"),
        ("long", "time-micros"),
        ("long", "timestamp-nanos"),
        ("bytes", "big-decimal"),
    ],
)
def test_a_logical_type_we_would_drop_is_refused(table: Table, raw: str, logical: str) -> None:
    """A column whose logical type would be lost is named before a commit of ours drops it."""
    commit = max(Path(table.path, ".hoodie").glob("*.commit"))
    content = json.loads(commit.read_bytes())
    avro = json.loads(content["extraMetadata"]["schema"])
    avro["fields"][-1]["type"] = ["null", {"type": raw, "logicalType": logical}]
    content["extraMetadata"] = {"schema": json.dumps(avro)}
    commit.write_text(json.dumps(content))
    before = tree(table.path)
    for act in (Table.to_arrow, lambda t: t.upsert(ROWS)):
        with pytest.raises(InvalidTable, match=f"'v'.*{logical}"):
            act(Table.open(table.path))
    assert tree(table.path) == before


def test_properties_without_their_checksum_are_not_written_by(table: Table) -> None:
    """A truncated properties file may be readable, but an upsert names the file and the fix."""
    path = Path(table.path, ".hoodie/hoodie.properties")
    whole = path.read_text().splitlines(keepends=True)
    refused = 0
    for kept in range(1, len(whole)):
        path.write_text("".join(whole[:kept]))
        with pytest.raises(InvalidTable, match=r"hoodie\.properties") as raised:
            Table.open(table.path).upsert(ROWS)
        refused += "has no hoodie.table.checksum" in str(raised.value)
    assert refused > 10
    assert without_meta(Table.open(table.path).to_arrow()) == without_meta(ROWS)
    path.write_text("".join(whole))
    Table.open(table.path).upsert(ROWS)


@pytest.mark.parametrize("inside", ["a column", "a list", "a struct"])
def test_milliseconds_are_read_but_not_written(table: Table, inside: str) -> None:
    """A column of Hudi's `timestamp-millis` refuses every write, as no cast helps."""
    millis: object = {"type": "long", "logicalType": "timestamp-millis"}
    if inside == "a list":
        millis = {"type": "array", "items": ["null", millis]}
    if inside == "a struct":
        field = {"name": "v", "type": ["null", millis], "default": None}
        millis = {"type": "record", "name": "s", "fields": [field]}
    (commit,) = Path(table.path, ".hoodie").glob("*.commit")
    content = json.loads(commit.read_bytes())
    schema = json.loads(content["extraMetadata"]["schema"])
    schema["fields"][-1]["type"] = ["null", millis]
    content["extraMetadata"] = {"schema": json.dumps(schema)}  # as another engine writes it
    commit.write_text(json.dumps(content))
    table = Table.open(table.path)
    if inside == "a column":
        for file in Path(table.path).glob("*/*.parquet"):
            rows = pq.ParquetFile(file).read()
            times = rows.column("v").cast(pa.timestamp("ms", "UTC"))
            pq.write_table(rows.set_column(rows.column_names.index("v"), "v", times), file)
        assert table.to_arrow(["v"]).schema.field("v").type == pa.timestamp("ms", "UTC")
    before = tree(table.path)
    for write in (
        lambda: table.delete(ROWS.select(["id", "p"])),
        lambda: table.upsert(ROWS),
        lambda: table.insert(ROWS.set_column(3, "v", pa.array([1, 1], pa.timestamp("ms", "UTC")))),
        lambda: table.fsck(repair="deduplicate"),
    ):
        with pytest.raises(InvalidTable, match=r"column 'v' .*timestamp\[ms.* engine that created"):
            write()
    assert tree(table.path) == before
