"""Changes between two commits: what they are, which files they need, and when they are refused."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import shutil
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import hudi
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import log_elsewhere
from followers import datetime_of
from replay import check_replay, listed
from tables import canonical, edited_elsewhere, timeline_folder, upgrade

from hoodie_nb import Table, failpoints
from hoodie_nb.clock import ManualClock, instant_time
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import CommitFailed, InvalidConfig, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import create_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.timeline.timeline import Instant, State
from hoodie_nb.types.avro_file import encode
from hoodie_nb.types.schema import COMMIT_TIME, FILE_NAME

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
TINY = {  # a few rows a file
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.parquet.max.file.size": 1500,
    "hoodie.copyonwrite.record.size.estimate": 300,
}
GAP_MS = 10
Row = tuple[str, str, int]


def rows(*given: Row) -> pa.Table:
    """Return rows of key, partition and value, which is also the ordering value."""
    columns = [{"id": k, "p": p, "ts": v, "v": v} for k, p, v in given]
    return pa.Table.from_pylist(columns, SCHEMA)


class Changing:
    """A table, its clock, and the times of its commits."""

    def __init__(self, path: Path, schema: pa.Schema = SCHEMA, **options: int) -> None:
        config = TableConfig("t", ("id",), ("p",), "ts", merge_mode="event_time", schema=schema)
        self.path, self.clock = path, ManualClock()
        self.table = Table(create_table(path, config, clock=self.clock, options=options))

    @property
    def times(self) -> list[str]:
        """Return the times of the completed commits, oldest first."""
        return [i.requested_time for i in self.table._handle.timeline.completed_commits()]

    def upsert(self, *given: Row) -> str:
        """Upsert rows and return the time of the commit."""
        self.clock.ms += GAP_MS
        return self.table.upsert(rows(*given)).requested_time

    def delete(self, *given: Row) -> str:
        """Delete rows and return the time of the commit."""
        self.clock.ms += GAP_MS
        return self.table.delete(rows(*given)).requested_time

    def changes(self, since: object, until: object = None) -> list[tuple[str, str, str, int]]:
        """Return kind, key, partition and value of each change, in order."""
        found = self.table.changes(
            since="earliest" if since is None else since, until=until
        ).to_pylist()
        return sorted((r["_change"], r["id"], r["p"], r["v"]) for r in found)

    def files(self, partition: str) -> list[Path]:
        """Return the base files of a partition, oldest first."""
        found = (self.path / partition).glob("*.parquet")
        return sorted(found, key=lambda file: file.stem.rpartition("_")[2])

    def replace(self, partition: str, kept: pa.Table, action: str = "CLUSTER") -> str:
        """Replace a partition's file groups by one with `kept`, as another engine; return when."""
        newest = max((self.path / ".hoodie").glob("*.commit"))
        self.clock.ms += GAP_MS
        time17 = self.table._handle.timeline.next_time()
        ids = {f.name.partition("_")[0] for f in self.files(partition)}
        name = f"{len(self.files(partition)):08d}-aaaa-0_0-0-0_{time17}.parquet"
        at = kept.schema.get_field_index(FILE_NAME)
        kept = kept.set_column(at, FILE_NAME, pa.repeat(pa.scalar(name), kept.num_rows))
        pq.write_table(kept, self.path / partition / name)
        stat = {"fileId": name.partition("_")[0], "path": f"{partition}/{name}"}
        content = json.loads(newest.read_bytes()) | {
            "partitionToWriteStats": {partition: [stat | {"prevCommit": "null"}]},
            "partitionToReplaceFileIds": {partition: sorted(ids)},
            "operationType": action,
        }
        for state in (State.REQUESTED, State.INFLIGHT):
            pending = Instant(time17, "replacecommit", state)
            (self.path / self.table._handle.timeline.path(pending)).touch()
        edited_elsewhere(self.path / f".hoodie/{time17}.replacecommit", content)
        return time17

    def clean(self, file: Path) -> None:
        """Remove a base file, as another engine's cleaner."""
        file.unlink()
        self.clock.ms += GAP_MS
        time17 = instant_time(self.clock.ms)
        for end in (".clean.requested", ".clean.inflight", ".clean"):
            Path(timeline_folder(self.path), f"{time17}{end}").touch()

    def archive(self, count: int, skip: int = 0, name: str = "archived") -> None:
        """Archive the oldest commits, or those after the first `skip`, as another engine."""
        folder = self.path / ".hoodie" / name
        folder.mkdir(exist_ok=True)
        known = self.times
        for time17 in known[skip:count]:
            for file in Path(timeline_folder(self.path)).glob(f"{time17}[._]*"):
                file.rename(folder / file.name)
        if skip:
            log_elsewhere(self.path, *known[skip:count])


@pytest.fixture
def changing(tmp_path: Path) -> Changing:
    """An empty table with one file group a partition."""
    return Changing(tmp_path / "t")


# --- what a change is -----------------------------------------------------------------------------


def test_a_change_is_an_insert_an_update_or_a_delete(changing: Changing) -> None:
    """Rows that are new, newer or gone are listed, with their values; other rows are not."""
    first = changing.upsert(("same", "x", 1), ("newer", "x", 1), ("gone", "x", 1))
    changing.upsert(("newer", "x", 2), ("new", "y", 2))
    changing.delete(("gone", "x", 9))
    assert changing.changes(first) == [
        ("delete", "gone", "x", 1),
        ("insert", "new", "y", 2),
        ("update", "newer", "x", 2),
    ]


def test_changes_have_the_columns_of_a_snapshot(changing: Changing) -> None:
    """Meta columns first, `_change` last, also without a change; a deleted row is the old row."""
    first = changing.upsert(("a", "x", 1), ("b", "x", 1))
    (old, _) = changing.table.to_arrow().sort_by("id").to_pylist()
    last = changing.delete(("a", "x", 1))
    found = changing.table.changes(since=first)
    expected = changing.table.to_arrow().schema.append(pa.field("_change", pa.string()))
    assert found.schema == expected
    assert found.to_pylist() == [{**old, "_change": "delete"}]
    assert changing.table.changes(since=last).equals(expected.empty_table())


def test_without_since_every_row_is_an_insert(changing: Changing) -> None:
    """`since="earliest"` gives the rows of the snapshot as of `until`, as inserts."""
    first = changing.upsert(("a", "x", 1), ("b", "y", 1))
    changing.delete(("a", "x", 1))
    assert changing.changes(None) == [("insert", "b", "y", 1)]
    assert changing.changes(None, first) == [("insert", "a", "x", 1), ("insert", "b", "y", 1)]
    empty = Changing(changing.path.with_name("empty"))
    assert empty.changes(None) == empty.changes("2025-01-01") == []


def test_changes_are_net(changing: Changing) -> None:
    """Several changes of a key count as one, and what was undone does not count."""
    first = changing.upsert(("a", "x", 1), ("b", "x", 1), ("c", "x", 1))
    changing.upsert(("a", "x", 2), ("new", "x", 2), ("d", "x", 2))
    changing.delete(("b", "x", 2), ("new", "x", 2))
    changing.upsert(("a", "x", 3), ("b", "x", 3))
    assert changing.changes(first) == [
        ("insert", "d", "x", 2),
        ("update", "a", "x", 3),
        ("update", "b", "x", 3),
    ]


def test_a_late_row_is_no_change(changing: Changing) -> None:
    """A row that lost against the stored one changes nothing, though its file was rewritten."""
    first = changing.upsert(("a", "x", 5), ("b", "x", 5))
    changing.upsert(("a", "x", 4), ("b", "x", 6))
    assert changing.changes(first) == [("update", "b", "x", 6)]


def test_a_key_that_moves_to_another_partition(changing: Changing) -> None:
    """It is a delete where it was and an insert where it is: keys belong to a partition."""
    first = changing.upsert(("a", "x", 1))
    changing.delete(("a", "x", 1))
    changing.upsert(("a", "y", 2))
    assert changing.changes(first) == [("delete", "a", "x", 1), ("insert", "a", "y", 2)]


def test_a_key_that_was_deleted_and_written_elsewhere_is_an_update(tmp_path: Path) -> None:
    """If its new row is in another file group of the partition, it is still one key."""
    table = Changing(tmp_path / "t", **TINY)
    first = table.upsert(*((f"k{n:02d}", "x", 1) for n in range(30)))
    place = {r["id"]: r[FILE_NAME].partition("_")[0] for r in table.table.to_arrow().to_pylist()}
    table.delete(("k00", "x", 1))
    table.replace("x", table.table.to_arrow())  # no group of before remains
    table.upsert(("k00", "x", 2))
    (found,) = [r for r in table.table.to_arrow().to_pylist() if r["id"] == "k00"]
    assert found[FILE_NAME].partition("_")[0] != place["k00"]
    assert table.changes(first) == [("update", "k00", "x", 2)]


def test_keys_that_insert_duplicated_are_counted(changing: Changing) -> None:
    """A further row of a key is an insert, and each deleted copy is a delete."""
    first = changing.upsert(("a", "x", 1))
    changing.table.insert(rows(("a", "x", 2), ("a", "x", 3)))
    second = changing.times[-1]
    assert changing.changes(first) == [("insert", "a", "x", 2), ("insert", "a", "x", 3)]
    changing.delete(("a", "x", 9))
    assert changing.changes(second) == [("delete", "a", "x", n) for n in (1, 2, 3)]
    assert changing.changes(first) == [("delete", "a", "x", 1)]
    changing.upsert(("a", "x", 10))
    kinds = [kind for kind, *_ in changing.changes(second)]
    assert kinds == ["delete", "delete", "update"]


def test_columns_that_were_added_are_null_in_old_rows(changing: Changing) -> None:
    """Deleted rows from before a column was added have null in it; types are the newest."""
    first = changing.upsert(("a", "x", 1), ("b", "x", 1))
    wider = SCHEMA.append(pa.field("note", pa.string()))
    changing.delete(("a", "x", 1))
    newest = max((changing.path / ".hoodie").glob("*.commit"))
    content = json.loads(newest.read_bytes())
    avro = json.loads(content["extraMetadata"]["schema"])
    avro["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
    content["extraMetadata"]["schema"] = json.dumps(avro)
    edited_elsewhere(newest, content)
    table = Table.open(changing.path)
    table.upsert(pa.Table.from_pylist([{"id": "c", "p": "x", "ts": 2, "note": "n"}], wider))
    found = {r["id"]: (r["_change"], r["note"]) for r in table.changes(since=first).to_pylist()}
    assert found == {"a": ("delete", None), "c": ("insert", "n")}


# --- since and until ------------------------------------------------------------------------------


def test_since_and_until_are_moments_commits_or_instants(changing: Changing) -> None:
    """They take the forms of `as_of`, and a time between two commits belongs to the earlier one.

    As `since`, digits name an instant: those of no instant may be of one that was undone.
    """
    first = changing.upsert(("a", "x", 1))
    second = changing.upsert(("b", "x", 1))
    changing.upsert(("c", "x", 1))
    expected = [("insert", "b", "x", 1)]
    moment = dt.datetime(2026, 1, 1, 0, 0, 0, GAP_MS * 1000, dt.UTC)
    assert first == f"202601010000000{GAP_MS}"
    after = [str(int(time17) + 1) for time17 in (first, second)]
    instants = [Instant(time17) for time17 in (first, second)]
    later = moment + dt.timedelta(milliseconds=1)
    for since, until in ((first, second), (later, after[1]), instants, (moment, second)):
        assert changing.changes(since, until) == expected
    assert changing.changes(moment.isoformat(), instants[1]) == expected
    assert changing.changes(first, "20991231235959999") == [*expected, ("insert", "c", "x", 1)]
    assert changing.changes("2099-12-31") == changing.changes(second, second) == []
    for since in (after[0], Instant(after[0]), "20991231235959999"):
        with pytest.raises(InvalidConfig, match=r"no completed commit .*Digits name a commit"):
            changing.changes(since)
    with pytest.raises(InvalidConfig, match=rf"`until` {first} is before `since` {second}"):
        changing.changes(second, first)
    for no_time in ("yesterday", pd.NaT, float("nan"), ""):
        with pytest.raises(InvalidConfig, match="is not a time"):
            changing.changes(no_time)
    with pytest.raises(InvalidConfig, match="is not a time"):
        changing.changes(first, 5)


def test_a_commit_of_ours_is_a_moment(changing: Changing) -> None:
    """What `upsert` returns can be given as `since`, `until` and `as_of`."""
    commit = changing.table.upsert(rows(("a", "x", 1)))
    changing.upsert(("b", "x", 1))
    assert changing.changes(commit) == [("insert", "b", "x", 1)]
    assert changing.changes(None, commit) == [("insert", "a", "x", 1)]
    assert changing.table.to_arrow(as_of=commit)["id"].to_pylist() == ["a"]


def test_a_program_that_follows_the_table_sees_every_change_once(changing: Changing) -> None:
    """The newest commit as `until`, and as the next `since`, gives each change once."""
    changing.upsert(("a", "x", 1), ("b", "x", 1))
    position, seen = None, []
    for write in (lambda: None, lambda: changing.upsert(("a", "x", 2)), lambda: None):
        write()
        until = changing.table.history()["requested_time"].iloc[-1]
        seen.append(changing.changes(position, until))
        position = until
    assert seen == [
        [("insert", "a", "x", 1), ("insert", "b", "x", 1)],
        [("update", "a", "x", 2)],
        [],
    ]


def test_until_must_not_be_a_moment_while_a_commit_is_open(changing: Changing) -> None:
    """It would be missed by a program that continues from there; a completed one is not."""
    first = changing.upsert(("a", "x", 1))
    changing.clock.ms += GAP_MS
    handle, log = changing.table._handle, EventLog()
    intake = Intake(handle.config, handle.schema)
    with WriteCoordinator(handle, log).committing(intake) as work:
        late, reader = work.plan.instant_time, Table.open(changing.path)
        moment = str(int(late) + 5)
        with pytest.raises(InvalidConfig, match=f"{late} commit .* before `until`") as error:
            reader.changes(since=first, until=moment)
        assert "history()" in str(error.value)
        with pytest.raises(InvalidConfig, match=late):
            reader.changes(since="earliest", until=late)
        assert reader.changes(since="earliest", until=first).num_rows == 1
        assert reader.changes(since=first).num_rows == 0
        given = keyed_in_order(rows(("late", "x", 2)), intake)
        work.statuses = write_in_process(given, work.plan, log)
    assert changing.changes(first, moment) == [("insert", "late", "x", 2)]


def test_an_older_commit_that_is_open_is_not_missed(changing: Changing) -> None:
    """Another engine's writers overlap: without `until`, too, an open commit is not passed over."""
    first, late, newest = (changing.upsert((key, key, 1)) for key in "abc")
    done = changing.path / f".hoodie/{late}.commit"
    content = done.read_bytes()
    done.unlink()
    for since in (first, None):
        with pytest.raises(InvalidConfig, match=f"{late} commit inflight .* has not completed"):
            changing.changes(since)
    assert changing.changes(first, first) == changing.changes(newest) == []
    done.write_bytes(content)
    assert changing.changes(first) == [("insert", "b", "b", 1), ("insert", "c", "c", 1)]


@pytest.mark.parametrize(
    ("version", "name", "operation"),
    [
        (8, "clustering", ""),
        (6, "replacecommit", "CLUSTER"),
        (8, "replacecommit", ""),
        (6, "replacecommit", ""),
        (6, "replacecommit", "INSERT_OVERWRITE"),
    ],
)
def test_an_open_clustering_changes_no_rows(
    changing: Changing, version: int, name: str, operation: str
) -> None:
    """Its file name or plan shows that it is no replacement; an open one is refused."""
    first = changing.upsert(("a", "x", 1))
    newest = changing.upsert(("b", "y", 1))
    if version == 8:
        upgrade(changing.path, version)
        changing.table = Table.open(changing.path)
    kind = {"name": "operationType", "type": "string"}
    plan = {"type": "record", "name": "HoodieRequestedReplaceMetadata", "fields": [kind]}
    content = encode(plan, {"operationType": operation}) if operation else b""
    for state, written in (("requested", content), ("inflight", b"")):
        file = timeline_folder(changing.path) / f"{int(first) + 5}.{name}.{state}"
        file.write_bytes(written)
    if name == "clustering" or operation == "CLUSTER":
        expected = [("insert", "b", "y", 1)]
        assert changing.changes(first) == changing.changes(first, newest) == expected
    else:
        with pytest.raises(InvalidConfig, match="has not completed"):
            changing.changes(first)


# --- replays --------------------------------------------------------------------------------------


def random_table(path: Path, seed: int, *, inserts: bool = False) -> Changing:
    """Return a table after seven random upserts, deletes, and failed attempts (and inserts)."""
    draw, table = random.Random(seed), Changing(path, **TINY)
    for number in range(7):
        keys = [f"k{draw.randrange(60):02d}" for _ in range(draw.randrange(1, 25))]
        given = rows(*((k, f"p{draw.randrange(3)}", number - draw.randrange(3)) for k in keys))
        table.clock.ms += GAP_MS
        verbs = [table.table.upsert, table.table.delete, *[table.table.insert] * inserts]
        if draw.random() < 0.3:
            fail_once(table, given)
        draw.choice([*verbs, table.table.upsert])(given)
    return table


def fail_once(table: Changing, given: pa.Table) -> None:
    """Let a write fail after it has published its files: the next one rolls it back."""
    failpoints.arm("coord.commit.pre=raise:EIO")
    try:
        with pytest.raises(CommitFailed, match="was rolled back"):
            table.table.upsert(given)
    finally:
        failpoints.arm("")


@pytest.mark.parametrize("seed", [0, 3])
def test_changes_lead_from_each_snapshot_to_each_later_one(tmp_path: Path, seed: int) -> None:
    """For every pair of commits of a random history, also with rolled back attempts."""
    table, kinds = random_table(tmp_path / "t", seed), Counter()
    for since, until in itertools.combinations([None, *table.times], 2):
        kinds += check_replay(table.table._handle, since, until)
    assert min(kinds[kind] for kind in ("insert", "update", "delete")) > 5


@pytest.mark.parametrize("seed", range(2))
def test_changes_of_duplicated_keys_add_up(tmp_path: Path, seed: int) -> None:
    """With inserts without a lookup the newer snapshot has the old rows, and the changes."""
    table = random_table(tmp_path / "t", seed, inserts=True)
    handle = table.table._handle
    for since, until in itertools.combinations(table.times, 2):
        before, after = (listed(table.table.to_arrow(as_of=t)) for t in (since, until))
        found = listed(table.table.changes(since=since, until=until))
        versions = Counter(map(repr, before))
        gone = Counter(row["_change"] for row in found)
        fresh = [row for row in found if row["_change"] != "delete"]
        assert len(before) + gone["insert"] - gone["delete"] == len(after)
        later = Counter(repr(row) for row in after)
        assert Counter(repr({k: v for k, v in r.items() if k != "_change"}) for r in fresh) == (
            later - versions
        )
    assert handle.timeline.pending() == []


@pytest.mark.parametrize("seed", range(2))
def test_hudi_rs_sees_the_same_inserts_and_updates(tmp_path: Path, seed: int) -> None:
    """Its incremental query gives the rows that we call inserts and updates, and no deletes."""
    table = random_table(tmp_path / "t", seed)
    for since, until in itertools.combinations(table.times, 2):
        found = table.table.changes(since=since, until=until).to_pylist()
        written = [
            {k: r[k] for k in r if k != "_change"} for r in found if r["_change"] != "delete"
        ]
        assert canonical(written) == canonical(of_hudi_rs(table.path, since, until))


def of_hudi_rs(path: Path, since: str, until: str) -> list[dict[str, Any]]:
    """Return the rows of an incremental query of hudi-rs."""
    options = hudi.HudiReadOptions().with_query_type(hudi.HudiQueryType.Incremental)
    options = options.with_start_timestamp(since).with_end_timestamp(until)
    batches = hudi.HudiTableBuilder.from_base_uri(str(path)).build().read(options)
    return [row for b in batches for row in pa.table(pa.record_batch(b)).to_pylist()]


# --- other engines --------------------------------------------------------------------------------


def test_clustering_is_no_change(tmp_path: Path) -> None:
    """Rows that a replacecommit moved to another file group, with their commit time, are equal."""
    table = Changing(tmp_path / "t", **TINY)
    first = table.upsert(*((f"k{n:02d}", "x", 1) for n in range(20)), ("a", "y", 1))
    clustered = table.replace("x", table.table.to_arrow().filter(pa.compute.field("p") == "x"))
    table.upsert(("k03", "x", 2), ("new", "x", 2))
    assert table.changes(first, clustered) == []
    expected = table.changes(clustered)
    table.replace("x", table.table.to_arrow().filter(pa.compute.field("p") == "x"))
    assert table.changes(clustered) == expected  # the groups of before were replaced twice
    assert table.changes(first) == [("insert", "new", "x", 2), ("update", "k03", "x", 2)]


def test_an_overwritten_row_is_an_update(changing: Changing) -> None:
    """After an overwrite, keys that were there are updates, and the missing ones deletes."""
    first = changing.upsert(("a", "x", 1), ("b", "x", 1), ("c", "y", 1))
    time17 = changing.table._handle.timeline.next_time()
    kept = changing.table.to_arrow().filter(pa.compute.field("id") == "a")
    at = kept.schema.get_field_index(COMMIT_TIME)
    kept = kept.set_column(at, COMMIT_TIME, pa.array([time17]))
    changing.replace("x", kept, "INSERT_OVERWRITE")
    assert changing.changes(first) == [("delete", "b", "x", 1), ("update", "a", "x", 1)]


OF_JAVA = {  # the changes between each pair of commits, the first of them from the start
    "v6_nonpartitioned": [{"insert": 3}, {"insert": 4}, {"update": 1, "insert": 1}],
    "v6_simplekeygen_nonhivestyle_overwritetable": [
        *({"insert": 3}, {"insert": 4}, {"insert": 1}),
        *({"update": 1, "insert": 1}, {"delete": 3, "insert": 1}),
        {"delete": 3, "update": 1},  # the last row of the overwrite was there
    ],
    "v8_simplekeygen_nonhivestyle": [{"insert": 3}, {"insert": 4}, {"update": 1, "insert": 1}],
    "v9_metadata_table": [{"insert": 3}, {"insert": 4}, {"update": 1, "insert": 1}],
}


@pytest.mark.parametrize("name", OF_JAVA)
def test_changes_of_a_table_that_java_wrote(tmp_path: Path, name: str) -> None:
    """Upserts and an overwrite by Java, in versions 6, 8 and 9, add up to each later snapshot."""
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    table = Table.open(tmp_path / name)
    spans = itertools.combinations([None, *table.history()["requested_time"]], 2)
    assert [check_replay(table._handle, *span) for span in spans] == OF_JAVA[name]


def test_a_file_that_was_written_twice_in_one_commit(changing: Changing) -> None:
    """Flink's commit lists both writes; the second one builds on the first, not on a slice."""
    changing.upsert(("a", "x", 1))
    first = changing.upsert(("b", "y", 1))
    last = changing.upsert(("a", "x", 2))
    commit = changing.path / f".hoodie/{last}.commit"
    content = json.loads(commit.read_bytes())
    content["partitionToWriteStats"]["x"].insert(
        0, content["partitionToWriteStats"]["x"][0] | {"prevCommit": last}
    )
    edited_elsewhere(commit, content)
    changing.table = Table.open(changing.path)
    assert changing.changes(first) == [("update", "a", "x", 2)]


# --- which files are needed -----------------------------------------------------------------------


def test_only_the_files_that_changed_are_read(tmp_path: Path) -> None:
    """File groups that no commit of the span wrote are not read: their files may be missing."""
    table = Changing(tmp_path / "t", **TINY)
    first = table.upsert(*((f"k{n:02d}", p, 1) for n in range(20) for p in ("x", "y")))
    last = table.upsert(("k03", "x", 2))
    before, after = (table.table.file_groups(as_of=t) for t in (first, last))
    written = set(after["file_name"]) - set(before["file_name"])
    (group,) = (name.partition("_")[0] for name in written)
    others = [f for p in "xy" for f in table.files(p) if not f.name.startswith(group)]
    assert len(others) > 5
    for file in others:
        file.unlink()
    assert table.changes(first) == [("update", "k03", "x", 2)]


def test_other_partitions_are_not_listed(changing: Changing, tmp_path: Path) -> None:
    """The commits name the partitions: a problem in another folder does not matter."""
    first = changing.upsert(("a", "x", 1), ("b", "y", 1))
    changing.upsert(("a", "x", 2))
    (tmp_path / "outside").mkdir()
    (changing.path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidTable, match="link"):
        changing.table.to_arrow()
    assert changing.changes(first) == [("update", "a", "x", 2)]


def test_a_span_whose_older_slice_was_cleaned_is_refused(changing: Changing) -> None:
    """The error names the file, the instant and the remedy; a newer `since` works."""
    first = changing.upsert(("a", "x", 1))
    second = changing.upsert(("a", "x", 2))
    third = changing.upsert(("a", "x", 3))
    oldest, cleaned, _ = changing.files("x")
    changing.clean(cleaned)  # an older slice is there: Hudi keeps those of savepoints
    with pytest.raises(InvalidConfig, match="cleaner removed") as error:
        changing.changes(second)
    for text in (f"x/{cleaned.name}", f"written by {second}", f"`since` {second}", "newer `since`"):
        assert text in str(error.value)
    with pytest.raises(InvalidConfig, match="newer `until`"):
        changing.changes(first, second)
    oldest.unlink()
    with pytest.raises(InvalidConfig, match=f"x/{oldest.name}, written by {first}"):
        changing.changes(first)
    assert changing.changes(third) == []
    assert changing.changes(None) == [("insert", "a", "x", 3)]


def test_a_span_whose_replaced_files_were_cleaned_is_refused(changing: Changing) -> None:
    """File groups that were replaced and then removed are not taken for absent ones."""
    changing.upsert(("a", "x", 1))
    second = changing.upsert(("a", "x", 2))
    kept, old = changing.files("x")  # an older slice is there: Hudi keeps those of savepoints
    changing.replace("x", changing.table.to_arrow())
    assert changing.changes(second) == []
    changing.clean(old)
    with pytest.raises(InvalidConfig, match=f"x/{old.name}, written by {second}"):
        changing.changes(second)
    changing.archive(2)
    kept.unlink()
    with pytest.raises(InvalidConfig, match="were archived"):
        changing.changes(second)


def test_a_span_whose_replaced_files_are_unknown_is_refused(changing: Changing) -> None:
    """If an archived commit wrote them and they are gone, the group is named without a file."""
    changing.upsert(("a", "x", 1))
    second = changing.upsert(("b", "y", 1))
    (old,) = changing.files("x")
    changing.replace("x", changing.table.to_arrow().filter(pa.compute.field("p") == "x"))
    changing.archive(1)
    assert changing.changes(second) == []
    old.unlink()
    with pytest.raises(InvalidConfig, match=rf"x/{old.name.partition('_')[0]}_\*\.parquet"):
        changing.changes(second)


def test_a_lost_newest_file_is_reported(changing: Changing) -> None:
    """Without the newest slice of a group its rows are not called unchanged."""
    first = changing.upsert(("a", "x", 1))
    changing.upsert(("a", "x", 2))
    changing.files("x")[-1].unlink()
    with pytest.raises(InvalidTable, match="it was lost"):
        changing.changes(first)


def test_a_span_with_archived_commits_is_refused(changing: Changing) -> None:
    """Changes of commits that were archived are not known; those since are right."""
    times = [changing.upsert(("a", "x", n), (f"k{n}", "x", n)) for n in range(4)]
    changing.archive(2)
    for since in (times[0], times[1], "20200101000000000"):
        with pytest.raises(InvalidConfig, match=f"before {times[2]} .* were archived") as error:
            changing.changes(since)
        assert f"give {times[2]} or a later time" in str(error.value)
    with pytest.raises(InvalidConfig, match="were archived"):
        changing.changes(None, times[1])
    inserts = [("insert", "a", "x", 2), *(("insert", f"k{n}", "x", n) for n in range(3))]
    assert changing.changes(None, times[2]) == inserts
    assert changing.changes(times[2]) == [("insert", "k3", "x", 3), ("update", "a", "x", 3)]
    assert len(changing.changes(None)) == 5
    changing.upsert(("b", "y", 1))  # in a partition of its own
    assert changing.changes(times[3]) == [("insert", "b", "y", 1)]
    for file in (changing.path / ".hoodie/archived").iterdir():
        file.unlink()
    for since in (times[1], datetime_of(times[1])):  # the commits in between build on older ones
        with pytest.raises(InvalidConfig, match="archived"):
            changing.changes(since)


def test_archived_commits_leave_no_trace_in_later_ones(changing: Changing) -> None:
    """The archive itself shows that commits of the span may be missing."""
    changing.upsert(("a", "x", 1))
    second = changing.upsert(("b", "y", 1))
    changing.archive(1)
    with pytest.raises(InvalidConfig, match="were archived"):
        changing.changes("20200101000000000")
    assert changing.changes(second) == []


def test_a_write_after_a_savepoint_was_deleted(changing: Changing) -> None:
    """Files of commits archived beyond it no longer count: an upsert would repeat their keys."""
    times = [changing.upsert((f"k{n}", f"p{n}", n)) for n in range(5)]
    changing.archive(3, skip=1)
    changing.table = Table.open(changing.path)
    with pytest.raises(InvalidTable, match=f"{times[1]}.parquet belongs to a commit that is not"):
        changing.upsert(("k1", "p1", 9))
    changing.archive(1)
    changing.upsert(("k1", "p1", 9))
    assert changing.table.to_arrow().num_rows == 5


def test_a_savepoint_does_not_show_files_of_no_commit(changing: Changing) -> None:
    """Without an archive nothing was archived: a file between two commits has no commit."""
    first = changing.upsert(("a", "x", 1))
    changing.clock.ms += GAP_MS
    changing.upsert(("b", "y", 1))
    (changing.path / f".hoodie/{first}.savepoint").touch()
    (file,) = changing.files("x")
    shutil.copy(file, file.with_name(f"left-0_0-0-0_{int(first) + 5}.parquet"))
    assert Table.open(changing.path).to_arrow().num_rows == 2


@pytest.mark.parametrize("version", [6, 8])
def test_the_archive_folder_of_the_properties(changing: Changing, version: int) -> None:
    """Its name is a property of the table, another one in each layout of the timeline."""
    changing.upsert(("a", "x", 1))
    second = changing.upsert(("b", "y", 1))
    name = {6: "old", 8: "timeline/old"}[version]
    if version == 8:
        upgrade(changing.path)
        changing.table = Table.open(changing.path)
    changing.archive(1, name=name)
    file = changing.path / ".hoodie/hoodie.properties"
    text = file.read_text().replace("hoodie.archivelog.folder=archived", "")
    key = {6: "hoodie.archivelog.folder", 8: "hoodie.timeline.history.path"}[version]
    file.write_text(f"{text}\n{key}=old\n")
    changing.table = Table.open(changing.path)
    assert changing.times == [second]
    with pytest.raises(InvalidConfig, match="were archived"):
        changing.changes("20200101000000000")
    assert changing.changes(second) == []


def test_a_table_whose_commits_were_all_archived(changing: Changing) -> None:
    """Nothing is known of its changes: they are refused, not empty."""
    first = changing.upsert(("a", "x", 1))
    changing.archive(1)
    for since in (first, None):
        with pytest.raises(InvalidConfig, match=r"all commits .* were archived") as error:
            changing.changes(since)
        assert "backup" in str(error.value)


def test_no_position_is_refused(tmp_path: Path) -> None:
    """A write without rows returns None, which does not mean the start."""
    table = Changing(tmp_path / "t", SCHEMA).table
    table.upsert(rows(("a", "x", 1)))
    with pytest.raises(InvalidConfig, match=r'since=None: .*"earliest" for every row'):
        table.changes(since=table.upsert(rows()))


def test_a_column_named_like_the_kind_of_change_is_refused(tmp_path: Path) -> None:
    """The result could not have both; the error says how to get the changes nevertheless."""
    table = Changing(tmp_path / "t", SCHEMA.append(pa.field("_change", pa.string())))
    with pytest.raises(InvalidConfig, match="has a column '_change'"):
        table.changes(None)
