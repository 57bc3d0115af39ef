"""The timeline layout of table versions 8 and 9: names, tables that Java wrote, upgrades."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from tables import hudi_rows, hudi_table, schema_of, tree, upgrade, without_meta

from hoodie_nb import Table
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.pipelines import PIPELINES, Shape
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.instant_generator import generate_instant
from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.settling import IN_PROCESS
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.stream.micro_batches import MicroBatches
from hoodie_nb.timeline.commits import CommitMetadata
from hoodie_nb.timeline.instant import LAYOUT_2, Instant, State
from hoodie_nb.types.avro_file import decode, encode, load_schema

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCHEMA = schema_of()
T, C = "20260101000000000", "20260101000001234"
DONE = State.COMPLETED
_RULE = "hoodie.record.merge.property."


def rows(*given: tuple[str, str, int, int]) -> pa.Table:
    """Return rows of key, partition, ordering value and value."""
    names = ("id", "p", "ts", "v")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in given], SCHEMA)


def job_on(handle: TableHandle) -> Checkpointing:
    """Return the protocol of a job that applies what is sealed."""
    events = EventLog()
    intake = Intake(handle.config, handle.schema)
    coordinator = WriteCoordinator(handle, events)
    return Checkpointing(coordinator, intake, Shape(), IN_PROCESS, given=None)


def unpacked(name: str, into: Path) -> Table:
    """Return a table that Java wrote, from its archive."""
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(into)
    return Table.open(into / name)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instant", "name"),
    [
        (Instant(T, "commit", State.REQUESTED), f"{T}.commit.requested"),
        (Instant(T, "commit", State.INFLIGHT), f"{T}.inflight"),
        (Instant(T, "commit", DONE, C), f"{T}_{C}.commit"),
        (Instant(T, "commit", DONE), f"{T}.commit"),  # of an older engine
        (Instant(T, "replacecommit", DONE, C), f"{T}_{C}.replacecommit"),
        (Instant(T, "rollback", State.INFLIGHT), f"{T}.rollback.inflight"),
        (Instant(T, "rollback", DONE, C), f"{T}_{C}.rollback"),
    ],
)
def test_instants_and_their_names_in_layout_2_are_inverse(instant: Instant, name: str) -> None:
    """Each instant has its name of timeline layout 2, and the name parses to the instant."""
    assert LAYOUT_2.file_name(instant) == name
    assert LAYOUT_2.parse(name) == instant


def test_a_clustering_is_a_replacecommit_from_its_request_on() -> None:
    """Layout 2 has another name for a pending clustering; it is one instant with its end."""
    assert LAYOUT_2.parse(f"{T}.clustering.requested") == Instant(T, "replacecommit")
    inflight = Instant(T, "replacecommit", State.INFLIGHT)
    assert LAYOUT_2.parse(f"{T}.clustering.inflight") == inflight


@pytest.mark.parametrize(
    "name",
    ["history", "manifest_1", f"{T}_{C}", f"{T}_{C}.commit.requested", f".{T}_{C}.commit.crc"],
)
def test_other_names_are_not_instants_of_layout_2(name: str) -> None:
    """Other files in the folder are not instants."""
    assert LAYOUT_2.parse(name) is None


# --- tables of Java -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v8_simplekeygen_nonhivestyle", "v9_metadata_table"])
def test_we_and_hudi_rs_read_tables_of_version_8_and_9_alike(tmp_path: Path, name: str) -> None:
    """Snapshot and past of Java's tables are the same for both readers; nothing is changed."""
    table = unpacked(name, tmp_path)
    before = tree(table.path)
    first, last = table.history()["requested_time"]
    plain = [None, last, first] if name.startswith("v9") else [None]  # it has nested columns
    for as_of in plain:
        found = hudi_table(table.path, as_of)
        assert found is not None
        ours = table.to_arrow(["_hoodie_record_key", "_hoodie_commit_time"], as_of=as_of)
        theirs = found.select(["_hoodie_record_key", "_hoodie_commit_time"])
        assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, theirs.to_pylist()))
    assert table.fsck() == []
    assert tree(table.path) == before


def test_a_table_of_javas_defaults_has_these_rows(tmp_path: Path) -> None:
    """Version 9 with a metadata table: rows, history and completion times as Java wrote them."""
    table = unpacked("v9_metadata_table", tmp_path)
    final = rows(("a", "x", 2, 10), ("b", "x", 1, 2), ("c", "y", 1, 3), ("d", "z", 1, 4))
    assert without_meta(table.to_arrow()) == without_meta(final) == hudi_rows(table.path)
    history = table.history()
    assert list(history["operation"]) == ["upsert", "upsert"]
    assert list(history["inserts"]) == [3, 1]
    names = {file.name for file in Path(table.path, ".hoodie/timeline").glob("2*_*.commit")}
    assert {f"{t}_{c}.commit" for t, c in history.iloc[:, :2].to_numpy()} == names


def test_an_archive_in_layout_2_is_no_part_of_the_timeline(tmp_path: Path) -> None:
    """Files of the archive do not count as instants, and rows of archived commits are read."""
    table = unpacked("v9_metadata_table", tmp_path)
    timeline, final = Path(table.path, ".hoodie/timeline"), without_meta(table.to_arrow())
    first = table.history()["requested_time"][0]
    (timeline / "history/manifest_1").write_text("{}")
    (timeline / "history" / f"{first}_{first}_0.parquet").write_bytes(b"PAR1")
    for file in timeline.glob(f"{first}*"):
        file.unlink()
    assert len(table.timeline()) == 1
    assert without_meta(table.to_arrow()) == final


def test_a_damaged_commit_of_avro_is_refused_by_name(tmp_path: Path) -> None:
    """Every truncated commit is an error that names the file."""
    table = unpacked("v9_metadata_table", tmp_path)
    commit = max(Path(table.path, ".hoodie/timeline").glob("*_*.commit"))
    whole = commit.read_bytes()
    for end in range(0, len(whole), 97):
        commit.write_bytes(whole[:end])
        with pytest.raises(InvalidTable, match=commit.name):
            Table.open(table.path).history()
    commit.write_bytes(whole)
    assert len(Table.open(table.path).history()) == 2


# --- upgrades -------------------------------------------------------------------------------------


def test_a_table_that_is_upgraded_while_it_is_open_is_read(tmp_path: Path) -> None:
    """An open table follows an upgrade: rows, past, schema, timeline; no instant is lost."""
    table = Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p", ordering="ts"
    )
    for version in (1, 2):
        table.upsert(rows(("a", "x", version, version), (f"n{version}", "y", 1, 1)))
    wider = SCHEMA.append(pa.field("new", pa.string()))
    commit = max(Path(table.path, ".hoodie").glob("*.commit"))
    content = json.loads(commit.read_bytes())
    avro = json.loads(content["extraMetadata"]["schema"])
    avro["fields"].append({"name": "new", "type": ["null", "string"], "default": None})
    content["extraMetadata"] = {"schema": json.dumps(avro)}  # as another engine writes it
    commit.write_text(json.dumps(content))
    table = Table.open(table.path)
    times, before = list(table.history()["requested_time"]), table.to_arrow()
    assert "new" in before.column_names
    upgrade(table.path)
    assert table.to_arrow().equals(before)
    assert table.schema == wider
    assert list(table.history()["requested_time"]) == times
    assert list(table.timeline()["completion_time"]) == [str(int(t) + 1) for t in times]
    assert table.to_arrow(as_of=times[0]).num_rows == 2
    assert table.fsck() == []


def test_an_instant_that_a_task_creates_has_the_layout_of_its_table(tmp_path: Path) -> None:
    """The InstantGenerator's task does not read the properties: the plan has the layout."""
    table = unpacked("v8_simplekeygen_nonhivestyle", tmp_path)
    handle = open_table(table.path)
    intake, shape = Intake(handle.config, handle.schema), Shape(PIPELINES["current"])
    plan = WriteCoordinator(handle, EventLog()).plan(None, intake, shape)
    time17 = generate_instant(plan)
    names = {file.name for file in Path(table.path, ".hoodie/timeline").glob(f"{time17}*")}
    assert names == {f"{time17}.commit.requested", f"{time17}.inflight"}
    assert [i.requested_time for i in handle.timeline.pending()] == [time17]


def test_a_table_of_version_9_is_replaced_by_one_of_version_6(tmp_path: Path) -> None:
    """Nothing of the old table is left: no file, no timeline, no metadata table."""
    old = unpacked("v9_metadata_table", tmp_path)
    table = Table.create(
        old.path, schema=SCHEMA, record_key="id", partition_by="p", if_exists="replace"
    )
    assert list(Path(old.path).rglob("*.parquet")) == []
    assert not Path(old.path, ".hoodie/timeline").exists()
    assert not Path(old.path, ".hoodie/metadata").exists()
    table.upsert(rows(("a", "x", 1, 1)))
    assert table.to_arrow().num_rows == len(hudi_rows(old.path)) == 1
    assert "hoodie.table.version=6" in Path(old.path, ".hoodie/hoodie.properties").read_text()
    assert table.fsck() == []


def test_partial_updates_are_refused_in_version_9(tmp_path: Path) -> None:
    """Version 9 has rules of its own for partial updates: such a table is read, not written."""
    table = unpacked("v9_metadata_table", tmp_path)
    properties = Path(table.path, ".hoodie/hoodie.properties")
    whole = properties.read_text()
    for line in ("hoodie.table.partial.update.mode=IGNORE_DEFAULTS", f"{_RULE}delete.key=op"):
        properties.write_text(f"{whole}{line}\n")
        again = Table.open(table.path, drop_metadata_table=True)
        assert again.to_arrow().num_rows == 4
        with pytest.raises(InvalidTable, match=r"write it with the engine") as raised:
            again.upsert(rows(("a", "x", 9, 9)))
        assert line.partition("=")[0] in str(raised.value)
        assert Path(table.path, ".hoodie/metadata").is_dir()  # it is dropped for a write only


@pytest.mark.parametrize(("version", "layout"), [("9", "1"), ("6", "2"), ("8", "3")])
def test_a_layout_of_another_version_is_refused(tmp_path: Path, version: str, layout: str) -> None:
    """Version and timeline layout must fit, or the timeline would look empty."""
    table = unpacked("v9_metadata_table", tmp_path)
    properties = Path(table.path, ".hoodie/hoodie.properties")
    text = properties.read_text().replace("table.version=9", f"table.version={version}")
    properties.write_text(text.replace("layout.version=2", f"layout.version={layout}"))
    with pytest.raises(InvalidTable, match=rf"layout\.version={layout}; supported:"):
        Table.open(table.path)


def test_commits_may_have_the_same_completion_time(tmp_path: Path) -> None:
    """Java's upgrade takes the files' modification times, which are equal after a copy."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    for key in "ab":
        table.upsert(rows((key, "x", 1, 1)))
    upgrade(table.path)
    for file in Path(table.path, ".hoodie/timeline").glob("*_*.commit"):
        file.rename(file.with_name(f"{file.name[:17]}_20991231000000000.commit"))
    commit = Table.open(table.path).upsert(rows(("c", "x", 1, 1)))
    assert commit is not None and commit.completion_time > "20991231000000000"
    assert len(hudi_rows(table.path)) == 3


def test_a_commit_that_a_downgrade_converted_is_read(tmp_path: Path) -> None:
    """Java makes JSON of our Avro commit and keeps our checksum, which no longer fits."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    upgrade(table.path)
    table = Table.open(table.path)
    table.upsert(rows(("a", "x", 1, 1)))
    (file,) = Path(table.path, ".hoodie/timeline").glob("*_*.commit")
    text = json.dumps(decode(file.read_bytes())).encode()
    time17 = file.name[:17]
    assert CommitMetadata.parse(text, f".hoodie/{time17}.commit").files
    damaged = text.replace(b'": "3-', b'": "2-').replace(b'"numWrites": 1', b'"numWrites": 3')
    with pytest.raises(InvalidTable, match="checksum"):
        CommitMetadata.parse(damaged, f".hoodie/{time17}.commit")


def test_the_background_of_a_stream_drops_the_metadata_table_too(tmp_path: Path) -> None:
    """The second thread's handle has the option of the job's table."""
    table = unpacked("v9_metadata_table", tmp_path)
    handle, events = open_table(table.path, drops_metadata_table=True), EventLog()
    batches = object.__new__(MicroBatches)
    coordinator = WriteCoordinator(handle, events)
    batches.coordinator, batches.coordinators = coordinator, [coordinator]
    batches._kept = KeptFiles()
    intake = Intake(handle.config, handle.schema)
    batches.checkpointing = Checkpointing(coordinator, intake, Shape(), IN_PROCESS)
    hold = JobHold(handle.storage, "a test")
    try:
        assert batches.background(hold).table.drops_metadata_table
    finally:
        hold.release()


def moved(root: Path, names: list[str], into: str) -> None:
    """Move files of the timeline to another folder, as an upgrade of Java does one by one."""
    folder = root / ".hoodie" / into
    folder.mkdir(exist_ok=True)
    for name in names:
        file = next(root.glob(f".hoodie/**/{name}"))
        done, later = file.suffix == ".commit", f"_{int(file.name[:17]) + 1}.commit"
        new = file.name.replace(".commit", later) if done and into else file.name
        file.rename(folder / new)


@pytest.mark.parametrize("moves", [slice(9), slice(1), slice(6), slice(-3, 9), slice(6, 7)])
@pytest.mark.parametrize("known", [True, False])
def test_an_interrupted_upgrade_is_refused(tmp_path: Path, moves: slice, known: bool) -> None:
    """A timeline in two folders is neither read nor written, wherever Java died; nothing changes.

    A pending instant whose completed file was moved would be rolled back.
    """
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    table = Table.create(tmp_path / "t", schema=SCHEMA, **keys)
    (tmp_path / "t/.hoodie/timeline/history").mkdir(parents=True)  # as Java's creation leaves it
    for version in (1, 2, 7):
        table.upsert(rows(("a", "x", version, version)))
    meta = Path(table.path, ".hoodie")
    names = sorted(f.name for f in meta.glob("2*"))  # three of each instant
    moved(Path(table.path), names[moves], "timeline")
    before = {name: c for name, c in tree(table.path).items() if ".hoodie_nb" not in name}
    table = table if known else Table.open(table.path)
    for action in (table.to_arrow, lambda: table.upsert(rows(("c", "x", 1, 1)))):
        with pytest.raises(InvalidTable, match=r"upgrade .* was interrupted.*that engine finish"):
            action()
    (finding,) = table.fsck()
    assert "was interrupted" in str(finding)
    assert before == {n: c for n, c in tree(table.path).items() if ".hoodie_nb" not in n}


def test_an_interrupted_downgrade_is_refused(tmp_path: Path) -> None:
    """The same holds for instants that were moved to the folder of the older layout."""
    table = unpacked("v8_simplekeygen_nonhivestyle", tmp_path)
    newest = max(f.name for f in Path(table.path, ".hoodie/timeline").glob("2*_*.commit"))
    file = Path(table.path, ".hoodie/timeline", newest)
    file.rename(Path(table.path, ".hoodie", f"{newest[:17]}.commit"))
    for action in (table.to_arrow, table.archive):
        with pytest.raises(InvalidTable, match=r"downgrade .* was interrupted"):
            action()


def test_an_upgrade_that_dies_beside_a_running_job_is_refused(tmp_path: Path) -> None:
    """A job that knows the timeline looks into the other folder as soon as a name is gone."""
    made = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    made.upsert(rows(("a", "x", 1, 1)))
    handle = open_table(made.path)
    job = job_on(handle)
    with writing(handle.storage):
        job.take_over()
        requested = min(f.name for f in Path(made.path, ".hoodie").glob("2*.requested"))
        moved(Path(made.path), [requested], "timeline")
        with pytest.raises(InvalidTable, match=r"upgrade .* was interrupted"):
            job.take_over()


def test_a_rollback_of_a_clustering_is_left_to_its_engine(tmp_path: Path) -> None:
    """A pending rollback of another engine's clustering is refused, not called unreadable."""
    table = unpacked("v8_simplekeygen_nonhivestyle", tmp_path)
    plan = {
        "instantToRollback": {"commitTime": T, "action": "clustering"},
        "RollbackRequests": [],
        "version": 1,
    }
    file = Path(table.path, f".hoodie/timeline/{C}.rollback.requested")
    file.write_bytes(encode(load_schema("HoodieRollbackPlan"), plan))
    with pytest.raises(ConcurrentWriter, match=rf"clustering {T}: let that engine finish"):
        table.clean()
    assert not any(finding.repaired for finding in table.fsck(repair=True))
    assert file.exists()


# --- tables that must not be written --------------------------------------------------------------


def with_cdc(root: Path) -> None:
    """Let another engine turn change data capture on."""
    file = root / ".hoodie/hoodie.properties"
    lines = [line for line in file.read_text().splitlines() if "table.cdc.enabled" not in line]
    file.write_text("\n".join([*lines, "hoodie.table.cdc.enabled=true\n"]))


def test_a_table_that_must_not_be_written_keeps_its_metadata_table(tmp_path: Path) -> None:
    """A repair is refused before it drops, rolls back or deletes anything."""
    table = unpacked("v9_metadata_table", tmp_path)
    root = Path(table.path)
    with_cdc(root)
    (root / f".hoodie/timeline/{T}.commit.requested").touch()
    (root / f".hoodie/timeline/{T}.inflight").write_bytes(b"")
    before = tree(root)
    with pytest.raises(InvalidTable, match=r"cdc\.enabled"):
        Table.open(root, drop_metadata_table=True).clean()
    found = Table.open(root, drop_metadata_table=True).fsck(repair=True)
    assert not any(finding.repaired for finding in found)
    after = {name: content for name, content in tree(root).items() if ".hoodie_nb" not in name}
    assert after == {name: before[name] for name in before if ".hoodie_nb" not in name}


def test_what_is_sealed_is_not_applied_to_a_table_that_must_not_be_written(tmp_path: Path) -> None:
    """A job refuses a table in which change data capture was turned on after it started."""
    made = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    handle = open_table(made.path)
    job = job_on(handle)
    with writing(handle.storage):
        job.take_over()
        with_cdc(Path(made.path))
        with pytest.raises(InvalidTable, match=r"cdc\.enabled"):
            job.take_over()
