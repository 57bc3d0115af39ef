"""The files on disk, byte for byte where it matters; other readers see the same rows."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from each_fault import each_fault
from every_type import TYPES
from hypothesis import given, settings
from hypothesis import strategies as st
from lives import commits, live, opened, runs
from lives import make as make_workload
from tables import canonical, hudi_rows, hudi_table, schema_of, timeline_names, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.clock import ManualClock
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.definition.property_file import parse_properties
from hoodie_nb.definition.property_lines import text_of
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.evidence.handle import create_table
from hoodie_nb.files.bloom import BloomFilter
from hoodie_nb.timeline.timeline import Instant, State
from hoodie_nb.types.avro_schema import from_avro, to_avro
from hoodie_nb.types.schema import META_COLUMNS

FIXTURES = Path(__file__).parents[2] / "fixtures"
T0 = "20260101000000000"
SMALL = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())])


def small(*rows: tuple[str, str, int]) -> pa.Table:
    """Return rows of key, partition, ordering value."""
    return pa.Table.from_pylist([dict(zip(SMALL.names, row, strict=True)) for row in rows], SMALL)


def create(root: Path, **more: Any) -> Table:
    """Create a table with a manual clock."""
    defaults = {"record_key": ("id",), "partition_by": ("p",), "ordering": "ts", "schema": SMALL}
    config = TableConfig("flights", merge_mode="event_time", **{**defaults, **more})
    return Table(create_table(root, config, clock=ManualClock()))


# --- names and texts --------------------------------------------------------------------------


def test_the_timeline_has_hudis_names(tmp_path: Path) -> None:
    """Three files per commit; an update creates a second slice of the same file group."""
    table = create(tmp_path / "t")
    table.upsert(small(("a", "x", 1)))
    table.upsert(small(("a", "x", 2)))
    names = timeline_names(table.path)
    assert names == [
        f"{T0}.commit",
        f"{T0}.commit.requested",
        f"{T0}.inflight",
        "20260101000000001.commit",
        "20260101000000001.commit.requested",
        "20260101000000001.inflight",
    ]
    sizes = [Path(table.path, ".hoodie", name).stat().st_size > 0 for name in names]
    assert sizes == [True, False, False, True, False, False]
    files = sorted(p.name for p in Path(table.path, "x").iterdir() if p.suffix == ".parquet")
    uuid = r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}-0"
    for name, time17 in zip(files, [T0, "20260101000000001"], strict=True):
        assert re.fullmatch(rf"{uuid}_0-0-0_{time17}\.parquet", name)
    assert files[0].split("_")[0] == files[1].split("_")[0]


@pytest.mark.parametrize(
    ("instant", "name"),
    [
        (Instant(T0, "commit", State.REQUESTED), f"{T0}.commit.requested"),
        (Instant(T0, "commit", State.INFLIGHT), f"{T0}.inflight"),
        (Instant(T0, "commit", State.COMPLETED), f"{T0}.commit"),
        (Instant(T0, "replacecommit", State.INFLIGHT), f"{T0}.replacecommit.inflight"),
        (Instant(T0, "rollback", State.REQUESTED), f"{T0}.rollback.requested"),
        (Instant(T0[:14], "clean", State.COMPLETED), f"{T0[:14]}.clean"),
    ],
)
def test_instants_and_their_file_names_are_inverse(instant: Instant, name: str) -> None:
    """Each instant has its name of timeline layout 1, and the name parses to the instant."""
    assert instant.file_name == name
    assert Instant.parse(name) == instant


@pytest.mark.parametrize(
    "name",
    ["hoodie.properties", T0, f"{T0}.requested", f"{T0}.commit.tmp", f"{T0}_1.commit", "1.commit"],
)
def test_other_names_are_not_instants(name: str) -> None:
    """Other files in the timeline's folder are not instants."""
    assert Instant.parse(name) is None


def test_the_properties_file_is_what_hudi_expects(tmp_path: Path) -> None:
    """hoodie.properties, line for line."""
    table = create(tmp_path / "t", url_encode=True)
    text = Path(table.path, ".hoodie/hoodie.properties").read_text()
    schema = json.dumps(to_avro(SMALL, "flights"), separators=(",", ":"))
    assert text.splitlines() == [
        f"#Properties saved on {T0}",
        "hoodie.table.name=flights",
        "hoodie.table.type=COPY_ON_WRITE",
        "hoodie.table.version=6",
        "hoodie.timeline.layout.version=1",
        "hoodie.table.recordkey.fields=id",
        "hoodie.table.partition.fields=p",
        "hoodie.table.base.file.format=PARQUET",
        "hoodie.populate.meta.fields=true",
        "hoodie.table.cdc.enabled=false",
        "hoodie.datasource.write.hive_style_partitioning=false",
        "hoodie.datasource.write.partitionpath.urlencode=true",
        "hoodie.datasource.write.drop.partition.columns=false",
        "hoodie.partition.metafile.use.base.format=false",
        "hoodie.table.timeline.timezone=UTC",
        "hoodie.table.keygenerator.type=SIMPLE",
        "hoodie.table.precombine.field=ts",
        "hoodie.table.keygenerator.class=org.apache.hudi.keygen.SimpleKeyGenerator",
        "hoodie.compaction.payload.class=org.apache.hudi.common.model.DefaultHoodieRecordPayload",
        "hoodie.archivelog.folder=archived",
        f"hoodie.table.create.schema={schema}",
        "hoodie.table.checksum=3905340825",
    ]


_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None, database=None)
@given(_TEXT.filter(str.strip), st.booleans(), st.booleans(), st.sampled_from(["6", "8", "9"]))
def test_properties_round_trip(name: str, hive: bool, encode: bool, version: str) -> None:
    """For any table name and each version, `parse` is the inverse of `text_of`."""
    config = TableConfig(
        name.strip(),
        ("id",),
        ("p",),
        "ts",
        hive,
        encode,
        "event_time",
        schema=schema_of(),
        version=version,
    )
    assert TableConfig.parse(text_of(config, "now"), "here") == config


def test_javas_escapes_are_read() -> None:
    r"""Comments, blank lines, \: \= \\ and \uXXXX are those of java.util.Properties."""
    text = "#comment\n!other\n\n a = b\\:c\\=d \nk\\u00e9y=\\u4e2d\\\\n\\n\nempty=\n"
    assert parse_properties(text) == {"a": "b:c=d", "kéy": "中\\n\n", "empty": ""}


def test_a_commit_lists_every_file_it_wrote(tmp_path: Path) -> None:
    """The completed file is Hudi's JSON: statistics per base file, schema, operation."""
    table = create(tmp_path / "t")
    table.upsert(small(("a", "x", 1), ("b", "x", 1), ("c", "y", 1)))
    table.upsert(
        small(("a", "x", 2), ("b", "x", 0), ("d", "x", 0)).append_column(
            "_hoodie_is_deleted", pa.array([True, False, False])
        )
    )
    first, second = (
        json.loads(Path(table.path, ".hoodie", f"2026010100000000{i}.commit").read_bytes())
        for i in range(2)
    )
    assert set(first) == {
        "partitionToWriteStats",
        "compacted",
        "extraMetadata",
        "operationType",
    }
    assert (first["operationType"], first["compacted"]) == ("UPSERT", False)
    assert json.loads(first["extraMetadata"]["schema"]) == to_avro(SMALL, "flights")
    assert sorted(first["partitionToWriteStats"]) == ["x", "y"]
    (old,) = first["partitionToWriteStats"]["x"]
    assert (old["prevCommit"], old["numWrites"], old["numInserts"]) == ("null", 2, 2)
    (stat,) = second["partitionToWriteStats"]["x"]
    file = Path(table.path, stat["path"])
    size = file.stat().st_size
    expected = {
        "fileId": old["fileId"],
        "path": f"x/{old['fileId']}_0-0-0_20260101000000001.parquet",
        "prevCommit": T0,
        "prevBaseFile": old["path"].removeprefix("x/"),
        "numWrites": 2,  # b is unchanged, d is new
        "numInserts": 1,
        "numUpdateWrites": 0,
        "numDeletes": 1,
        "totalWriteBytes": size,
        "fileSizeInBytes": size,
        "partitionPath": "x",
        "totalWriteErrors": 0,
    }
    assert {name: stat[name] for name in expected} == expected
    assert list(second["partitionToWriteStats"]) == ["x"]


def test_partitions_have_their_metadata(tmp_path: Path) -> None:
    """Every partition, nested or the root, has the metadata file that Java needs to read it."""
    flat = create(tmp_path / "flat", partition_by=())
    nested = create(tmp_path / "nested", record_key=("id", "ts"), partition_by=("p", "ts"))
    for table in (flat, nested):
        table.upsert(small(("a", "x", 1)))
    for folder, depth in [(Path(flat.path), 0), (Path(nested.path, "x/1"), 2)]:
        lines = (folder / ".hoodie_partition_metadata").read_text().splitlines()
        assert lines[0] == "#partition metadata"
        assert lines[1] == "#Thu Jan 01 00:00:00 UTC 2026"
        assert lines[2:] == [f"commitTime={T0}", f"partitionDepth={depth}"]
    assert not Path(nested.path, "x/.hoodie_partition_metadata").exists()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A table whose second commit was killed just before its completed file."""
    root = make_workload(tmp_path / "t")
    live(opened(root), 1)
    last = tmp_path / "last"
    for copy, _ in each_fault(root, runs(2), "after"):
        if commits(copy) == 2:
            return last
        shutil.rmtree(last, ignore_errors=True)
        shutil.copytree(copy, last)
    raise AssertionError("unreachable")


def test_markers_precede_files_and_distinguish_new_from_rewritten(killed: Path) -> None:
    """After a kill before the completed file each published file has a marker, CREATE or MERGE."""
    files = tree(killed)
    published = {path for path in files if path.endswith("_20260101000000001.parquet")}
    inside = ".hoodie/.temp/20260101000000001/"
    markers = {p.removeprefix(inside) for p, c in files.items() if inside in p and c is not None}
    assert {marker.rpartition(".marker.")[0] for marker in markers} == published
    kinds = {marker.split("/")[0]: marker.rpartition(".marker.")[2] for marker in markers}
    assert kinds == {"par0": "MERGE", "par1": "MERGE", "par2": "CREATE"}
    assert {c for p, c in files.items() if inside in p and c is not None} == {b""}


def test_a_rollback_is_avro_that_names_what_it_deleted(killed: Path) -> None:
    """Plan and metadata of a rollback are valid Avro and name files and instant."""
    published = sorted(p for p in tree(killed) if p.endswith("_20260101000000001.parquet"))
    shutil.rmtree(killed / ".hoodie/.hoodie_nb/prepared")  # as of a batch without checkpoints
    live(opened(killed), 2)
    (done,) = (killed / ".hoodie").glob("*.rollback")
    (record,) = fastavro.reader(io.BytesIO(done.read_bytes()))
    assert isinstance(record, dict)
    assert record["commitsRollback"] == ["20260101000000001"]
    assert record["totalFilesDeleted"] == len(published) == 3
    deleted = [p for m in record["partitionMetadata"].values() for p in m["successDeleteFiles"]]
    assert sorted(deleted) == published
    (plan,) = fastavro.reader(io.BytesIO(Path(f"{done}.requested").read_bytes()))
    assert isinstance(plan, dict)
    assert plan["instantToRollback"] == {"commitTime": "20260101000000001", "action": "commit"}
    named = [p for r in plan["RollbackRequests"] for p in r["filesToBeDeleted"]]
    assert sorted(named) == [f"file:{killed}/{p}" for p in published]
    assert Path(f"{done}.inflight").exists()


# --- base files -------------------------------------------------------------------------------


def test_base_files_carry_meta_columns_and_an_index(tmp_path: Path) -> None:
    """A base file has five meta columns, and key range, bloom and Avro schema in its footer."""
    table = create(tmp_path / "t", hive_style=True)
    table.upsert(small(("b", "x", 1), ("a", "x", 1), ("ü", "x", 1)))
    table.upsert(small(("b", "x", 2)))
    (piece,) = table.file_groups()["file_name"]
    file = pq.ParquetFile(Path(table.path, "p=x", piece))
    assert file.schema_arrow.names == [*META_COLUMNS, *SMALL.names]
    rows = {r["_hoodie_record_key"]: r for r in file.read().to_pylist()}
    assert rows["b"] == {
        "_hoodie_commit_time": "20260101000000001",
        "_hoodie_commit_seqno": "20260101000000001_0_0",
        "_hoodie_record_key": "b",
        "_hoodie_partition_path": "p=x",
        "_hoodie_file_name": piece,
        "id": "b",
        "p": "x",
        "ts": 2,
    }
    assert rows["a"]["_hoodie_commit_time"] == T0
    assert rows["a"]["_hoodie_file_name"] == piece
    assert len({r["_hoodie_commit_seqno"] for r in rows.values()}) == 3
    footer = {k.decode(): v.decode() for k, v in file.metadata.metadata.items()}
    assert footer["hoodie_min_record_key"] == "a"
    assert footer["hoodie_max_record_key"] == "ü"
    bloom = BloomFilter.parse(
        footer["org.apache.hudi.bloomfilter"], footer["hoodie_bloom_filter_type_code"]
    )
    assert bloom.might_contain(pa.array(["a", "b", "ü", "other"])).tolist() == [True] * 3 + [False]
    assert base64.b64decode(footer["org.apache.hudi.bloomfilter"], validate=True)
    avro = json.loads(footer["parquet.avro.schema"])
    assert [f["name"] for f in avro["fields"]] == [*META_COLUMNS, *SMALL.names]
    assert footer["writer.model.name"] == "avro"
    assert "ARROW:schema" not in footer


def test_the_footer_index_knows_every_key_after_any_commits(
    new_folder: Callable[[], Path],
) -> None:
    """After inserts, updates and deletes of any text, key ranges and blooms are correct."""
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.lists(st.lists(texts, max_size=12), min_size=1, max_size=4))
    def check(history: list[list[str]]) -> None:
        table = create(new_folder() / "t")
        for number, keys in enumerate(history):
            rows = small(*((key, "x", number) for key in keys))
            flags = pa.array([i % 3 == 2 for i in range(len(keys))], pa.bool_())
            table.upsert(rows.append_column("_hoodie_is_deleted", flags))
        assert [str(f) for f in table.fsck()] == []

    check()


# --- types ------------------------------------------------------------------------------------

ALL = pa.schema(
    [("id", pa.string()), *((n.replace(" ", "_"), kind) for n, (kind, _) in TYPES.items())]
)


def all_types() -> pa.Table:
    """Return three rows with a column of every type: edge values, more of them, nulls."""
    columns = [pa.array(values, kind) for kind, values in TYPES.values()]
    return pa.Table.from_arrays([pa.array(["a", "b", "c"]), *columns], schema=ALL)


def test_every_type_survives_avro() -> None:
    """Arrow → Avro → Arrow is the identity for every type that can be stored, nested ones too."""
    avro = to_avro(ALL, "flights")
    assert from_avro(json.loads(json.dumps(avro))) == ALL
    assert from_avro(to_avro(ALL, "flights", meta=True)) == ALL
    fastavro.parse_schema(avro)


def test_names_in_avro_are_unique_and_legal() -> None:
    """Nested records and decimals with equal names, and odd table names, give legal Avro."""
    twice = pa.struct([("x", pa.struct([("x", pa.decimal128(5, 2))])), ("d", pa.decimal128(5, 2))])
    schema = pa.schema([("x", twice), ("d", pa.decimal128(5, 2)), ("list", pa.list_(twice))])
    for name in ("t", "2026", "sp ü%t", "a.b-c"):
        avro = to_avro(schema, name)
        fastavro.parse_schema(avro)
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", avro["name"])
        assert from_avro(avro) == schema


def test_hudi_reads_every_type_as_we_do(tmp_path: Path) -> None:
    """Insert, then update: both readers give the rows that were written, of every type."""
    rows = all_types().drop_columns(["local"])  # hudi-rs 0.5 panics at local-timestamp-micros
    table = Table.create(tmp_path / "t", schema=rows.schema, record_key="id")
    for _ in range(2):
        table.upsert(rows)
        assert without_meta(table.to_arrow()) == without_meta(rows)
        assert hudi_rows(table.path) == without_meta(rows)
    seen = hudi_table(table.path)
    assert seen is not None
    assert seen.schema.names == [*META_COLUMNS, *rows.schema.names]


def test_we_read_every_type_that_we_write(tmp_path: Path) -> None:
    """Insert, then update: rows and schema of every type are returned unchanged."""
    table = Table.create(tmp_path / "t", schema=ALL, record_key="id")
    for _ in range(2):
        table.upsert(all_types())
        found = table.to_arrow(meta=False)
        assert found.schema == ALL
        assert without_meta(found) == without_meta(all_types())


@pytest.mark.parametrize("hive_style", [False, True])
@pytest.mark.parametrize(
    ("key", "by"),
    [("id", None), ("id", "p"), (["id", "n"], "p"), (["id", "n"], ["p", "d"]), (["id", "n"], None)],
)
def test_every_layout_reads_the_same(tmp_path: Path, key: Any, by: Any, hive_style: bool) -> None:
    """With one or two keys and up to two partition columns, both readers agree at each step."""
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("n", pa.int64()),
            ("p", pa.string()),
            ("d", pa.date32()),
            ("v", pa.int64()),
        ]
    )
    table = Table.create(
        tmp_path / "t", schema=schema, record_key=key, partition_by=by, hive_style=hive_style
    )
    day = dt.date(1960, 1, 2)
    rows = [
        {"id": f"k{i}", "n": i % 3, "p": f"p{i % 2}", "d": day + dt.timedelta(i % 2), "v": i}
        for i in range(8)
    ]
    table.upsert(pa.Table.from_pylist(rows, schema=schema))
    rows = [{**row, "v": 100} if i % 3 == 0 else row for i, row in enumerate(rows)]
    table.upsert(pa.Table.from_pylist(rows[::3], schema=schema))
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) == canonical(rows)
    table.delete(pa.Table.from_pylist(rows[:6], schema=schema).drop_columns(["v"]))
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) == canonical(rows[6:])
    folders = {"/".join(Path(p).parts[:-1]) for p in tree(table.path) if p.endswith(".parquet")}
    columns = [by] if isinstance(by, str) else by or []
    texts = {
        "/".join((f"{c}=" if hive_style else "") + str(row[c]) for c in columns) for row in rows
    }
    assert folders == texts
    assert [str(f) for f in table.fsck()] == []


def test_a_file_group_that_deletes_emptied_is_read_and_filled_again(tmp_path: Path) -> None:
    """Deleting the last row leaves a file without rows; both readers and an upsert handle it."""
    table = create(tmp_path / "t")
    table.upsert(small(("a", "x", 1), ("b", "y", 1)))
    commit = table.delete(small(("a", "x", 1)))
    assert commit is not None
    assert (commit.deletes, commit.inserts, commit.updates) == (1, 0, 0)
    assert (
        hudi_rows(table.path)
        == without_meta(table.to_arrow())
        == without_meta(small(("b", "y", 1)))
    )
    (piece,) = table.file_groups().query("partition_path == 'x'")["file_name"]
    footer = pq.ParquetFile(Path(table.path, "x", piece)).metadata.metadata
    assert b"hoodie_min_record_key" not in footer
    assert [str(f) for f in table.fsck()] == []
    table.upsert(small(("a", "x", 0), ("c", "x", 0)))
    assert hudi_rows(table.path) == without_meta(small(("a", "x", 0), ("b", "y", 1), ("c", "x", 0)))


def test_deleting_what_is_not_there_makes_no_commit(tmp_path: Path) -> None:
    """A delete that matches nothing leaves no instant, file or folder."""
    table = create(tmp_path / "t")
    table.upsert(small(("a", "x", 1)))
    before = tree(table.path)
    assert table.delete(small(("a", "other", 9))) is None
    assert tree(table.path) == before


def test_time_travel_sees_every_earlier_snapshot(tmp_path: Path) -> None:
    """`as_of` a commit gives its snapshot, by our reader and hudi-rs; before the first nothing."""
    table = create(tmp_path / "t")
    batches = [
        small(("a", "x", 1), ("b", "y", 1)),
        small(("a", "x", 2), ("c", "z", 1)),
        small(("b", "y", 3)),
    ]
    expected, rows = [], {}
    for batch in batches:
        table.upsert(batch)
        rows |= {row["id"]: row for row in batch.to_pylist()}
        expected.append(canonical(rows.values()))
    table.delete(small(("b", "y", 3)))
    rows.pop("b")
    expected.append(canonical(rows.values()))
    for number, snapshot in enumerate(expected):
        time17 = f"2026010100000000{number}"
        assert without_meta(table.to_arrow(as_of=time17)) == snapshot
        assert hudi_rows(table.path, as_of=time17) == snapshot
        moment = dt.datetime(2026, 1, 1, 0, 0, 0, number * 1000, dt.UTC)
        assert without_meta(table.to_arrow(as_of=moment)) == snapshot
        assert without_meta(table.to_arrow(as_of=moment.isoformat())) == snapshot
    assert table.to_arrow(as_of="20251231235959999").num_rows == 0
    assert without_meta(table.to_arrow(as_of="20991231235959999")) == expected[-1]
    for wrong in ("yesterday", "2026", 5, "20261301000000000"):
        with pytest.raises(InvalidConfig, match="is not a time"):
            table.to_arrow(as_of=wrong)


def test_columns_are_chosen_by_name(tmp_path: Path) -> None:
    """A read returns the requested columns in order; the error names missing ones."""
    table = create(tmp_path / "t")
    table.upsert(small(("a", "x", 1)))
    assert table.to_arrow(["ts", "_hoodie_record_key"]).to_pylist() == [
        {"ts": 1, "_hoodie_record_key": "a"}
    ]
    with pytest.raises(InvalidConfig, match=r"\['nope'\] are not in the table"):
        table.to_arrow(["id", "nope"])


def test_history_and_timeline_report_what_was_done(tmp_path: Path) -> None:
    """One row per commit with its counts; the timeline shows each instant in its latest state."""
    table = create(tmp_path / "t")
    table.upsert(small(("a", "x", 1), ("b", "x", 1)))
    table.insert(small(("c", "y", 1)))
    table.delete(small(("a", "x", 1)))
    history = table.history()
    assert history[["operation", "inserts", "updates", "deletes", "files"]].values.tolist() == [
        ["upsert", 2, 0, 0, 1],
        ["insert", 1, 0, 0, 1],
        ["delete", 0, 0, 1, 1],
    ]
    timeline = table.timeline()
    assert timeline["state"].tolist() == ["completed"] * 3
    assert timeline["requested_time"].tolist() == history["requested_time"].tolist()


# --- tables of Java ---------------------------------------------------------------------------


@pytest.fixture(params=["v6_nonpartitioned", "v6_simplekeygen_nonhivestyle_overwritetable"])
def java(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A table that Java Hudi wrote, unpacked."""
    with zipfile.ZipFile(FIXTURES / f"{request.param}.zip") as archive:
        archive.extractall(tmp_path)
    return Table.open(tmp_path / request.param)


# their writer's time zone, minus an hour
NOON_IN_CHICAGO = dt.datetime(2023, 3, 31, 16, tzinfo=dt.UTC)


def expected_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows that the fixture's .sql creates, without meta columns, by key."""

    def row(number: int, active: bool, part: int, *, person: str, small_int: int) -> dict[str, Any]:
        return {
            "id": number,
            "name": person,
            "isActive": active,
            "byteField": part,
            "shortField": small_int,
            "intField": 5000 + 10_000 * number,
            "dateField": dt.date(2023, 4, number),
            "timestampField": NOON_IN_CHICAGO + dt.timedelta(number, 60 * 61 * number),
        }

    if "overwrite" in name:
        return [row(4, False, 30, person="Diana", small_int=500)]
    return [
        row(1, False, 1, person="Alice", small_int=300),
        row(2, False, 0, person="Bob", small_int=100),
        row(3, True, 1, person="Carol", small_int=200),
        row(4, True, 1, person="Diana", small_int=500),
    ]


def test_javas_tables_have_the_rows_of_their_sql(java: Table) -> None:
    """Rows, nested values and decimals of Java's table are those of its SQL statements."""
    found = java.to_arrow(meta=False).sort_by("id")
    expected = expected_rows(java.path)
    assert found.select(list(expected[0])).to_pylist() == expected
    diana = found.to_pylist()[-1]
    assert diana["decimalField"] == Decimal("65432.12345")
    assert diana["binaryField"] == b"new binary data"
    assert diana["arrayField"] == [
        {"arr_struct_f1": "orange", "arr_struct_f2": 900},
        {"arr_struct_f1": "gray", "arr_struct_f2": 1000},
    ]
    assert dict(diana["mapField"])["key8"] == {
        "map_field_value_struct_f1": 123.456,
        "map_field_value_struct_f2": False,
    }
    assert diana["structField"] == {
        "field1": "Diana",
        "field2": 50,
        "child_struct": {"child_field1": 987.654, "child_field2": True},
    }
    assert diana["doubleField"] == 2.468
    assert hudi_rows(java.path) == without_meta(found)


def test_javas_tables_can_be_written(java: Table) -> None:
    """An upsert into Java's table updates rows in their file groups; hudi-rs reads the result."""
    before = java.to_arrow(meta=False).sort_by("id")
    groups = set(java.file_groups()["file_id"])
    rows = before.to_pylist()
    changed = [{**rows[-1], "name": "changed", "longField": 2**60}, {**rows[-1], "id": 99}]
    commit = java.upsert(pa.Table.from_pylist(changed, schema=before.schema))
    assert commit is not None
    assert (commit.inserts, commit.updates) == (1, 1)
    after = [*rows[:-1], *changed]
    assert without_meta(java.to_arrow()) == canonical(after)
    assert hudi_rows(java.path) == canonical(after)
    assert set(java.file_groups()["file_id"]) == groups
    java.delete(pa.Table.from_pylist([changed[1]], schema=before.schema))
    assert hudi_rows(java.path) == canonical(after[:-1])
    assert [str(f) for f in Table.open(java.path).fsck()] == []


def test_a_stale_update_of_a_java_row_loses(java: Table) -> None:
    """The ordering column that Java's table names decides for our upserts too."""
    before = java.to_arrow(meta=False)
    old = before.slice(0, 1).to_pylist()[0]
    late = {**old, "name": "late", "longField": old["longField"] - 1}
    java.upsert(pa.Table.from_pylist([late], schema=before.schema))
    assert hudi_rows(java.path) == without_meta(before)


@pytest.mark.parametrize(
    "name", ["v6_nonpartitioned", "v6_simplekeygen_nonhivestyle_overwritetable"]
)
def test_reading_javas_tables_changes_nothing(name: str, tmp_path: Path) -> None:
    """Opening, reading, checking and listing a table writes no file into it."""
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    before = tree(tmp_path)
    table = Table.open(tmp_path / name)
    table.to_arrow()
    table.history()
    table.timeline()
    table.fsck()
    table.file_groups()
    assert tree(tmp_path) == before
