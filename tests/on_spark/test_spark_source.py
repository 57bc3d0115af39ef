"""The data source `hoodie_nb` of Spark: reads, SQL by name, and streams of changes."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from core.every_type import EVERY
from core.followers import Follower, datetime_of, lived, rolled_back_elsewhere
from core.tables import canonical, edited_elsewhere, upgrade, without_meta
from pyspark.errors import PySparkException
from spark_source import FolderSource
from test_spark_changes import written

import hoodie_nb as hn
from hoodie_nb import failpoints
from hoodie_nb.errors import InvalidConfig, WriteFailed
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.on_spark.sources import ChangeStream, SnapshotReader
from hoodie_nb.reading.changes import changes_schema

pytestmark = pytest.mark.spark
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "p": pa.string(),
        "n": pa.int64(),
        "f": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "d": pa.decimal128(9, 2),
    }
)
FLAGGED = SCHEMA.append(pa.field("_hoodie_is_deleted", pa.bool_()))
PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
NOON = dt.datetime(2026, 3, 29, 12, tzinfo=dt.UTC)


def rows(*keys: str, version: int = 0, partition: str | None = None) -> pa.Table:
    """Return a row of each key, whose values follow from the version; some are null or NaN."""
    values = [
        {
            "id": key,
            "p": partition or f"p{int(key[1:]) % 3}",
            "n": None if (int(key[1:]) + version) % 5 == 4 else version,
            "f": [float("nan"), None, 1.5, -1.0][(int(key[1:]) + version) % 4],
            "at": NOON + dt.timedelta(hours=version),
            "d": Decimal(version) / 4,
        }
        for key in keys
    ]
    return pa.Table.from_pylist(values, SCHEMA)


@pytest.fixture
def source(spark) -> Iterator:
    """A session that knows the format, and a reader of it."""
    hn.register(spark)
    return spark.read.format("hoodie_nb")


@pytest.fixture
def table(tmp_path: Path) -> hn.Table:
    """A table of three partitions after three commits, the last of which deleted a row."""
    made = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    made.upsert(rows(*(f"k{n}" for n in range(12))))
    made.upsert(rows("k1", "k2", "k12", version=3))
    made.delete(rows("k5"))
    return made


def test_a_read_has_every_type(spark, source, tmp_path):
    """The rows and columns are those of the snapshot in Arrow, in any zone of the session."""
    empty = hn.Table.create(tmp_path / "empty", schema=SCHEMA, record_key="id")
    assert source.load(empty.path).count() == 0
    table = written(tmp_path / "t")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found = source.load(table.path).toArrow()
        changed = source.option("since", "earliest").load(table.path).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    expected = canonical(table.to_arrow().to_pylist())
    assert canonical(found.cast(table.to_arrow().schema).to_pylist()) == expected
    rows = changed.drop_columns("_change").cast(table.to_arrow().schema)
    assert canonical(rows.to_pylist()) == expected


def test_every_type_is_read_by_spark(spark, source, tmp_path):
    """Edge values and nulls of each type that can be stored, by the format and by a snapshot."""
    schema = pa.schema(
        {"id": pa.string()} | {n.replace(" ", "_"): k for n, (k, _) in EVERY.items()}
    )
    columns = [pa.array(values, kind) for kind, values in EVERY.values()]
    table = hn.Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert(pa.Table.from_arrays([pa.array(["a", "b", "c"]), *columns], schema=schema))
    expected = canonical(table.to_arrow().to_pylist())
    for frame in (source.load(table.path), table.to_spark(spark)):
        found = frame.toArrow().cast(table.to_arrow().schema)
        assert canonical(found.to_pylist()) == expected


@pytest.mark.parametrize("version", [8, 9])
def test_tables_of_newer_versions_are_streamed(spark, source, table, tmp_path, version):
    """A stream into a table of version 8 or 9, and the stream of its changes, as in version 6."""
    upgrade(table.path, version)
    changing = hn.Table.open(table.path)
    first = changing.history()["requested_time"][0]
    folder = FolderSource(tmp_path / "source", SCHEMA)
    folder.add(rows("k1", "k90", version=9))
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"}
    hn.write_stream(folder.stream(spark), changing, **settings).wait(120)
    newest = changing.history()["requested_time"].iloc[-1]
    stream = stream_of(changing, first)
    assert stream.initialOffset() == {"instant": first}
    assert stream.latestOffset({"instant": first}, None) == {"instant": newest}
    found = read(stream, {"instant": first}, {"instant": newest})
    assert canonical(found) == canonical(changing.changes(since=first).to_pylist())
    assert without_meta(source.load(changing.path).toArrow()) == without_meta(changing.to_arrow())
    assert len(found) == 5 and changing.fsck() == []


def test_filters_and_options_give_the_rows_of_a_snapshot(spark, source, table):
    """Conditions in Spark's sense of null and NaN, earlier moments, and changes."""
    frame, whole = source.load(table.path), spark.createDataFrame(table.to_arrow())
    for sql in (
        "p = 'p1'",
        "p > 'p0' and n is null",
        "id like 'k1%' and id in ('k1', 'k12', 'k7')",
        "n in (0, null)",
        "n not in (0)",
        "f > 1",
        "f = double('NaN')",
        "d >= 0.5 and at < timestamp'2026-03-29 16:00:00Z'",
        "n <=> null or not (p = 'p1')",
        "_hoodie_record_key = 'k3'",
    ):
        expected = canonical(whole.where(sql).toArrow().to_pylist())
        for read_by in (frame, table.to_spark(spark)):
            assert canonical(read_by.where(sql).toArrow().to_pylist()) == expected, sql
    first, second, _ = table.history()["requested_time"]
    earlier = source.option("as_of", first).load(table.path)
    assert without_meta(earlier.toArrow()) == without_meta(table.to_arrow(as_of=first))
    for since, until in (("earliest", second), (first, None)):
        options = {"since": since} | ({"until": until} if until else {})
        changed = spark.read.format("hoodie_nb").options(**options).load(table.path).toArrow()
        expected = table.changes(since=since, until=until)
        assert canonical(changed.to_pylist()) == canonical(expected.to_pylist())


def test_queries_of_one_frame_do_not_mix(spark, source, table):
    """A query without a filter has all rows, also after one with a filter; so has a union."""
    frame = source.load(table.path)
    assert frame.where("p = 'p1'").count() == 4
    assert frame.count() == frame.where("p = 'p1'").union(frame.where("p <> 'p1'")).count() == 12
    tasks = SnapshotReader(table.path, stored_schema(table.schema), None).partitions()
    assert [len(task.value[0]) for task in tasks] == [3]  # small files share a task


def test_a_view_is_queried_by_name(spark, source, table):
    """SQL reads the table by the name of a view, as it was at the view's first query. Not by path.

    The examples of docs/reading.md.
    """
    names = {"hn": hn, "spark": spark, "board": table}
    example(names, "create or replace temp view")
    held = [("p0", 5), ("p1", 4), ("p2", 3)]
    assert sorted(tuple(row) for row in names["counts"].collect()) == held
    assert names["frame"].count() == names["changed"].count() == 12
    table.upsert(rows("k77", "k78"))
    assert spark.table("board").count() == 12
    example(names, "create or replace temp view")
    assert spark.table("board").count() == 14
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"):
        spark.sql(f"select * from hoodie_nb.`{table.path}`")


def test_wrong_options_and_columns_are_refused(spark, source, table):
    """A misspelt option or column is an error that lists what there is, never ignored."""
    for options in ({"asof": "1"}, {"since": "1", "as_of": "1"}, {"until": "1"}):
        with pytest.raises(PySparkException, match="at most one of `as_of`, `since`"):
            spark.read.format("hoodie_nb").options(**options).load(table.path)
    with pytest.raises(PySparkException, match="is not a time"):
        spark.read.format("hoodie_nb").option("as_of", "soon").load(table.path).count()
    with pytest.raises(PySparkException, match=r"columns \['m'\] are not in the table"):
        spark.read.format("hoodie_nb").schema("id string, m int").load(table.path).count()
    with pytest.raises(PySparkException, match=r"for spark\.readStream; a read has `since`"):
        spark.read.format("hoodie_nb").option("starting", "latest").load(table.path).count()
    found = spark.read.format("hoodie_nb").schema("n long, id string").load(table.path)
    assert sorted(found.where("n = 3").collect()) == [(3, "k12"), (3, "k2")]
    stream = spark.readStream.format("hoodie_nb").load(table.path)
    with pytest.raises(PySparkException, match=r"say where it starts, with .option\('starting'"):
        stream.writeStream.format("noop").start().awaitTermination()


# --- streams of changes --------------------------------------------------------------------------


def stream_of(table: hn.Table, starting: str) -> ChangeStream:
    """Return the reader that Spark asks for offsets."""
    return ChangeStream(table.path, changes_schema(open_table(table.path)), starting)


def read(stream: ChangeStream, start: dict, end: dict) -> list:
    """Return the changes between two offsets."""
    batches = [b for task in stream.partitions(start, end) for b in stream.read(task)]
    return pa.Table.from_batches(batches, changes_schema(open_table(stream._storage))).to_pylist()


def test_offsets_are_completed_commits(table):
    """A stream starts at the earliest or latest commit or a moment, and waits for open commits."""
    first, _, third = table.history()["requested_time"]
    stream = stream_of(table, "earliest")
    assert stream.initialOffset() == {"instant": ""}
    assert stream_of(table, "latest").initialOffset() == {"instant": third}
    between = datetime_of(first) + dt.timedelta(milliseconds=1)
    assert stream_of(table, between.isoformat()).initialOffset() == {"instant": first}
    assert stream_of(table, "2001-01-01").initialOffset() == {"instant": ""}
    assert stream.latestOffset({"instant": ""}, None) == {"instant": third}
    found = read(stream, {"instant": first}, {"instant": third})
    assert canonical(found) == canonical(table.changes(since=first).to_pylist())
    assert {row["_change"] for row in found} == {"insert", "update", "delete"}
    handle = open_table(table.path)
    opened = handle.timeline.request()
    content = json.loads(Path(table.path, ".hoodie", f"{third}.commit").read_bytes())
    later = Path(table.path, ".hoodie", f"{int(opened.requested_time) + 5}.commit")
    edited_elsewhere(later, {**content, "partitionToWriteStats": {}})
    assert stream.latestOffset({"instant": third}, None) == {"instant": third}
    handle.timeline.remove(opened)
    newest = {"instant": str(int(opened.requested_time) + 5)}
    assert stream.latestOffset({"instant": third}, None) == newest
    stream.prepareForTriggerAvailableNow()
    table.upsert(rows("k99"))
    assert stream.latestOffset({"instant": third}, None) == newest  # no further


def test_an_offset_that_is_gone_is_an_error_with_the_remedy(table):
    """Commits that were archived, files that were cleaned, and commits that were undone."""
    first, second, third = table.history()["requested_time"]
    stream, hudi = stream_of(table, "earliest"), Path(table.path, ".hoodie")
    offsets = {"instant": first}, {"instant": third}
    gone = "cannot continue from its offset .*starting='earliest' gives all rows again"
    before = [f for f in Path(table.path).rglob("*.parquet") if f.stem.endswith(first)]
    kept = {path: path.read_bytes() for path in [*before, hudi / f"{third}.commit"]}
    for path in before:
        path.unlink()
    with pytest.raises(hn.HoodieError, match=gone):
        stream.partitions(*offsets)
    for path in before:
        path.write_bytes(kept[path])
    (hudi / f"{third}.commit").unlink()
    with pytest.raises(InvalidConfig, match=f"commit {third} .*was undone or archived.*Or st"):
        stream.partitions({"instant": third}, {"instant": str(int(third) + 9)})
    (hudi / f"{third}.commit").write_bytes(kept[hudi / f"{third}.commit"])
    assert len(read(stream, *offsets)) == 4
    (hudi / "archived").mkdir(exist_ok=True)
    (hudi / "archived" / ".commits_.archive.1_1-0-1").write_bytes(b"")
    for time17 in (first, second):
        for path in hudi.glob(f"{time17}.*"):
            path.unlink()
    with pytest.raises(InvalidConfig, match=f"were archived.*{gone[-20:]}"):
        stream.partitions(*offsets)
    with pytest.raises(InvalidConfig, match=f"not archived: give {third} or a later one"):
        stream_of(table, first).initialOffset()


def test_an_offset_that_was_restored_away_before_it_was_read_is_an_error(table):
    """Its rows are in no commit: the stream stops at once, not after the next commit."""
    first, second, third = table.history()["requested_time"]
    stream = stream_of(table, "earliest")
    table.restore(second)
    gone = f"from its offset {second}.*{third}, but restore .* undone.*new checkpoint folder"
    with pytest.raises(InvalidConfig, match=gone):
        stream.partitions({"instant": second}, {"instant": third})
    with pytest.raises(InvalidConfig, match=f"commit {third}, but restore .* undone"):
        stream.latestOffset({"instant": third}, None)
    assert stream.latestOffset({"instant": first}, None) == {"instant": second}
    assert len(read(stream, {"instant": first}, {"instant": second})) > 0
    table.savepoint(first)  # and commits were archived: the timeline seems to begin later
    archived = Path(table.path, ".hoodie/archived")
    archived.mkdir(exist_ok=True)
    (archived / ".commits_.archive.1_1-0-1").write_bytes(b"")
    table.restore(first)
    table.upsert(rows("k9"))
    for since, until in ((first, third), (third, str(int(third) + 9)), (first, second)):
        with pytest.raises(InvalidConfig, match="undone"):
            stream.partitions({"instant": since}, {"instant": until})


def test_a_stream_does_not_start_at_a_moment_that_was_undone(table):
    """What its target has read up to then is no state of the table; other moments are."""
    _, second, third = table.history()["requested_time"]
    undone = table.rollback().requested_time
    for starting in (third, (datetime_of(third) + dt.timedelta(milliseconds=1)).isoformat()):
        with pytest.raises(InvalidConfig, match=f"commit {third}, but rollback {undone} has"):
            stream_of(table, starting).initialOffset()
    for starting in (second, undone, dt.datetime.now(dt.UTC).isoformat()):
        assert stream_of(table, starting).initialOffset() == {"instant": second}


def test_a_batch_does_not_end_with_a_commit_that_is_being_undone(table):
    """Its offset would be undone before the next batch, and Spark would keep it for ever."""
    first, second, third = table.history()["requested_time"]
    stream = stream_of(table, "earliest")
    stream.prepareForTriggerAvailableNow()
    failpoints.arm("restore.plan.post=raise:EIO")
    try:
        with pytest.raises(WriteFailed, match="Input/output"):
            table.restore(second)
    finally:
        failpoints.arm("")
    assert stream.latestOffset({"instant": first}, None) == {"instant": second}
    hn.Table.open(table.path).upsert(rows("k9", version=5))
    assert third not in {*table.history()["requested_time"]}
    assert stream.latestOffset({"instant": first}, None) == {"instant": second}


class StreamFollower(Follower):
    """A follower that reads as Spark does: an offset is chosen first, and then read."""

    def follow(self, table: hn.Table, until: object = None) -> None:
        """Read one batch."""
        held = "" if self.position == "earliest" else self.position
        stream, start = stream_of(table, "earliest"), {"instant": held}
        end = stream.latestOffset(start, None)
        columns = changes_schema(open_table(table.path))
        self.apply(pa.Table.from_pylist(read(stream, start, end), columns))
        self.position = end["instant"] or "earliest"


PLAIN = pa.schema({"id": pa.string(), "p": pa.string(), "ts": pa.int64()})
PLAIN_KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts"}


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("seed", range(2))
def test_a_stream_equals_the_table_or_stops(tmp_path, version, seed):
    """Across upserts, overwrites, clusterings, restores, rollbacks by us and Java, and services."""
    draw = random.Random(100 + seed)
    keep = {"hoodie.clean.commits.retained": 4, "hoodie.keep.min.commits": 6}
    keep |= {"hoodie.keep.max.commits": 8, "hoodie.parquet.small.file.limit": 0}
    table = hn.Table.create(
        tmp_path / "t", schema=PLAIN, **PLAIN_KEYS, options=keep, table_version=version
    )
    followers = [StreamFollower() for _ in range(4)]
    for number in range(40):
        lived(table, draw, number)
        follower = draw.choice(followers)
        follower.follow_or_restart(table, snapshot=number % 2 == 0)
        follower.check(table)
    assert sum(follower.refused for follower in followers) > 1


@pytest.mark.parametrize("version", [6, 9])
def test_spark_follows_overwrites_and_clusterings_and_stops_at_what_is_undone(
    spark, tmp_path, version
):
    """The query fails with the reason; a new checkpoint folder and an empty copy go on."""
    hn.register(spark)
    small = {"hoodie.parquet.small.file.limit": 0}
    table = hn.Table.create(
        tmp_path / "t", schema=PLAIN, **PLAIN_KEYS, options=small, table_version=version
    )

    def upsert(number: int, *keys: int) -> None:
        table.upsert([{"id": f"k{key}", "p": "ab"[key % 2], "ts": number} for key in keys])

    def start(follower: Follower, checkpoint: str):
        stream = spark.readStream.format("hoodie_nb").option("starting", "earliest")
        writer = stream.load(table.path).writeStream.option(
            "checkpointLocation", str(tmp_path / checkpoint)
        )
        return writer.foreachBatch(lambda frame, _: follower.apply(frame.toArrow())).start()

    upsert(0, 0, 1, 2)
    follower = Follower()
    query = start(follower, "first")
    steps = (
        lambda: upsert(1, 3, 4),
        lambda: table.insert_overwrite([{"id": "k0", "p": "a", "ts": 2}]),
        table.cluster,
        lambda: upsert(3, 5),
    )
    for step in steps:
        step()
        query.processAllAvailable()
        follower.check(table)
    seen = table.history()["requested_time"].iloc[-1]
    rolled_back_elsewhere(table, seen)
    upsert(4, 7)
    with pytest.raises(PySparkException, match=f"offset {seen} .*has undone it.*new checkpoint"):
        query.processAllAvailable()
    follower = Follower()
    query = start(follower, "second")
    query.processAllAvailable()
    query.stop()
    follower.check(table)


def example(names: dict, word: str, until: str = "```") -> None:
    """Run the one example of the page that contains a word, up to another word."""
    every = re.findall(r"```python\n(.*?```)", PAGE.read_text(), re.S)
    (code,) = [text for text in every if word in text]
    exec(compile(code.partition(until)[0], str(PAGE), "exec"), names)


class Pair:
    """A stream into a table, and the stream of its changes into a second one."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.source = FolderSource(folder / "source", FLAGGED)
        keys = {"record_key": "id", "partition_by": "p"}
        self.first = hn.Table.create(folder / "first", schema=SCHEMA, **keys, ordering="n")
        self.second = hn.Table.create(folder / "second", schema=SCHEMA, **keys)
        self.jobs: list = []

    def start(self) -> None:
        """Start both jobs, as after a crash of the machine."""
        settings = {"trigger": "0 seconds", "placement": "driver"}
        names = {"spark": self.spark, "board": self.first, "copy": self.second}
        example(names, "readStream", until="job = ")
        self.jobs = [
            hn.write_stream(stream, table, checkpoint=str(self.folder / name), **settings)
            for stream, table, name in (
                (self.source.stream(self.spark), self.first, "ck1"),
                (names["rows"], self.second, "ck2"),
            )
        ]

    def kill(self) -> None:
        """End both in the middle of what they do."""
        for job in self.jobs:
            job.kill()


@pytest.mark.parametrize("seed", range(2))
def test_a_stream_of_changes_copies_a_table_also_if_both_jobs_are_killed(spark, tmp_path, seed):
    """Inserts, updates and deletes of one table, applied to a second one, make it equal."""
    hn.register(spark)
    pair, draw = Pair(spark, tmp_path), random.Random(seed)
    pair.start()
    try:
        for version in range(10):
            keys = [f"k{draw.randrange(40)}" for _ in range(15)]
            given = rows(*dict.fromkeys(keys), version=version)
            flags = pa.array([draw.random() < 0.3 for _ in range(len(given))])
            pair.source.add(given.append_column("_hoodie_is_deleted", flags))
            if version % 3 == 2:
                pair.jobs[draw.randrange(2)].process_all_available()
                if version == 5:
                    pair.source.add(given.append_column("_hoodie_is_deleted", flags))
                pair.kill()
                pair.start()
        for job in pair.jobs:
            job.process_all_available()
    finally:
        for job in pair.jobs:
            job.stop()
    assert without_meta(pair.first.to_arrow()) == without_meta(pair.second.to_arrow())
    history = pair.second.history()
    assert history["deletes"].sum() and history["updates"].sum()
    assert pair.first.fsck() == pair.second.fsck() == []


def test_a_first_commit_during_an_available_now_trigger_waits(tmp_path):
    """The trigger ends at the start of an empty table; the next one reads the commit."""
    schema = pa.schema([("id", pa.string())])
    table = hn.Table.create(tmp_path / "t", schema=schema, record_key="id")
    stream = stream_of(table, "earliest")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    table.upsert(pa.table({"id": ["a"]}))
    end = stream.latestOffset(start, None)
    assert end == start and read(stream, start, end) == []
    stream.prepareForTriggerAvailableNow()
    assert len(read(stream, end, stream.latestOffset(end, None))) == 1
