"""Hudi's metadata table: refused, or dropped on request, whatever happens in between."""

from __future__ import annotations

import itertools
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from each_fault import each_fault, opened
from faults import Fault
from tables import Model, hudi_rows, schema_of, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.clock import SystemClock
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition.property_file import parse_properties
from hoodie_nb.errors import InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.settling import IN_PROCESS
from hoodie_nb.lock.lock import writing
from hoodie_nb.types.avro_file import encode, load_schema

FIXTURE = Path(__file__).parents[2] / "fixtures" / "v9_metadata_table.zip"
PROPERTIES = ".hoodie/hoodie.properties"
OLD = [("a", "x", 2, 10), ("b", "x", 1, 2), ("c", "y", 1, 3), ("d", "z", 1, 4)]
NEW = [("b", "x", 5, 50), ("e", "y", 1, 5), ("a", "x", 1, 99)]  # an update, an insert, a late row


def dicts(given: list[tuple[str, str, int, int]]) -> list[dict[str, object]]:
    """Return rows of key, partition, ordering value and value."""
    return [dict(zip(("id", "p", "ts", "v"), row, strict=True)) for row in given]


ROWS = pa.Table.from_pylist(dicts(NEW), schema_of())


def models() -> tuple[list[str], list[str]]:
    """Return the rows before and after the upsert of `ROWS`."""
    model = Model()
    model.upsert(dicts(OLD))
    before = model.snapshot()
    model.upsert(dicts(NEW))
    return before, model.snapshot()


BEFORE, AFTER = models()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a table that Java wrote with its defaults: version 9, a metadata table."""
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "v9_metadata_table"


def test_a_metadata_table_forbids_a_write(root: Path) -> None:
    """A write is refused in one line that names the way out, and changes nothing."""
    before = tree(root)
    with pytest.raises(InvalidTable, match=r"metadata table .*drop_metadata_table=True") as raised:
        Table.open(root).upsert(ROWS)
    assert "\n" not in str(raised.value)
    assert {p: v for p, v in tree(root).items() if ".hoodie_nb" not in p} == before


def test_a_metadata_table_that_is_being_built_forbids_a_write(root: Path) -> None:
    """The property of a build in progress counts, too."""
    path = root / PROPERTIES
    text = path.read_text().replace("partitions=column_stats,files,partition_stats", "partitions=")
    path.write_text(text.replace("partitions.inflight=", "partitions.inflight=files"))
    with pytest.raises(InvalidTable, match=r"metadata table \(files\)"):
        Table.open(root).upsert(ROWS)


def test_a_dropped_metadata_table_leaves_nothing(root: Path) -> None:
    """Reading drops nothing; a write does, and only three properties are gone."""
    lines = (root / PROPERTIES).read_text()
    table = Table.open(root, drop_metadata_table=True)
    assert without_meta(table.to_arrow()) == BEFORE
    assert (root / ".hoodie/metadata").is_dir()
    table.upsert(ROWS)
    assert without_meta(table.to_arrow()) == AFTER == hudi_rows(root)
    assert not (root / ".hoodie/metadata").exists()
    assert not (root / ".hoodie/.index_defs").exists()
    left, all_of_them = (root / PROPERTIES).read_text(), parse_properties(lines)
    gone = {"hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight"}
    gone |= {"hoodie.table.index.defs.path"}
    assert parse_properties(left) == {k: v for k, v in all_of_them.items() if k not in gone}
    assert not list(root.glob(".hoodie/.hoodie.properties*.crc"))  # it is of another content
    assert table.fsck() == []
    Table.open(root).delete(ROWS.select(["id", "p", "ts"]))  # no longer refused
    assert hudi_rows(root) == without_meta(table.to_arrow()) != AFTER


def test_a_crash_at_any_operation_while_it_is_dropped_is_recovered(root: Path) -> None:
    """After a kill at any operation both readers see whole commits; the next write finishes."""
    left_over = 0

    def dropping(copy: Path, fault: Fault) -> TableHandle:
        handle = opened(copy, fault, clock=SystemClock())
        handle.drops_metadata_table = True
        return handle

    def upsert(table: Table) -> object:
        return table.upsert(ROWS)

    before = each_fault(root, upsert, "before", every=2, process=dropping)
    after = each_fault(root, upsert, "after", first=2, every=2, process=dropping)
    for copy, _ in itertools.chain(before, after):
        seen = without_meta(Table.open(copy).to_arrow())
        assert seen in (BEFORE, AFTER)
        assert hudi_rows(copy) == seen
        findings = [str(finding) for finding in Table.open(copy).fsck()]
        left_over += any("a metadata table that was dropped" in finding for finding in findings)
        again = Table.open(copy, drop_metadata_table=True)
        again.upsert(ROWS)
        assert without_meta(again.to_arrow()) == AFTER == hudi_rows(copy)
        assert not (copy / ".hoodie/metadata").exists()
        assert again.fsck() == []
    assert left_over >= 1


def test_what_a_crash_left_does_not_disturb_other_writes(root: Path) -> None:
    """A write without the option goes on beside the leftover, which fsck names with its fix."""
    copy = root.with_name("kept")
    shutil.copytree(root / ".hoodie/metadata", copy)
    Table.open(root, drop_metadata_table=True).upsert(ROWS.slice(0, 1))
    shutil.copytree(copy, root / ".hoodie/metadata")
    table = Table.open(root)
    table.upsert(ROWS)
    assert without_meta(table.to_arrow()) == AFTER == hudi_rows(root)
    (finding,) = table.fsck()
    assert "drop_metadata_table=True" in finding.fix
    Table.open(root, drop_metadata_table=True).upsert(ROWS)
    assert table.fsck() == []


def test_fsck_advises_what_repairs_beside_a_metadata_table(root: Path) -> None:
    """Without dropping it nothing can be repaired; the call of the finding repairs and drops it."""
    (root / ".hoodie/timeline/20990101000000000.commit.requested").touch()
    (finding,) = Table.open(root).fsck(repair=True)
    call = "Table.open(path, drop_metadata_table=True).fsck(repair=True)"
    assert finding.code == "pending-instant" and call in finding.fix
    (repaired,) = eval(call, {"Table": Table, "path": root})
    assert repaired.repaired == "completed or rolled back" and Table.open(root).fsck() == []
    assert without_meta(Table.open(root).to_arrow()) == BEFORE == hudi_rows(root)


def with_a_bucket_index(root: Path) -> str:
    """Let the table look like one of a consistent bucket index."""
    (root / ".hoodie/.bucket_index").mkdir()
    return "bucket index"


def with_a_rollback_of_a_completed_instant(root: Path) -> str:
    """Leave the plan of a rollback whose instant has completed."""
    done = min((root / ".hoodie/timeline").glob("2*_*.commit")).name[:17]
    plan = {
        "instantToRollback": {"commitTime": done, "action": "commit"},
        "RollbackRequests": [],
        "version": 1,
    }
    file = root / ".hoodie/timeline/20990101000000000.rollback.requested"
    file.write_bytes(encode(load_schema("HoodieRollbackPlan"), plan))
    return "pending for the completed instant"


def with_a_lost_completed_file(root: Path) -> str:
    """Delete the completed file of a commit, so that it looks pending."""
    min((root / ".hoodie/timeline").glob("2*_*.commit")).unlink()
    return "was completed"


@pytest.mark.parametrize(
    "spoil",
    [with_a_bucket_index, with_a_rollback_of_a_completed_instant, with_a_lost_completed_file],
)
def test_a_table_that_is_refused_keeps_its_metadata_table(
    root: Path, spoil: Callable[[Path], str]
) -> None:
    """A write drops the metadata table only after every check that may refuse the table."""
    why = spoil(root)
    before = tree(root)
    with pytest.raises(InvalidTable, match=why):
        Table.open(root, drop_metadata_table=True).upsert(ROWS)
    assert {p: v for p, v in tree(root).items() if ".hoodie_nb" not in p} == before


def test_a_metadata_table_that_appears_during_a_job_is_dropped_if_the_table_fits(
    root: Path,
) -> None:
    """Before a commit, a running job drops a new metadata table, unless the table has changed."""
    lines, copy = (root / PROPERTIES).read_text(), root.with_name("kept")
    shutil.copytree(root / ".hoodie/metadata", copy)
    handle, events = open_table(root, drops_metadata_table=True), EventLog()
    coordinator = WriteCoordinator(handle, events)
    intake = Intake(handle.config, handle.schema)
    job = Checkpointing(coordinator, intake, Shape(), IN_PROCESS, given=None)
    with writing(handle.storage):
        job.recover()
        for fits in (True, False):
            shutil.copytree(copy, root / ".hoodie/metadata")
            (root / PROPERTIES).write_text(lines)
            if fits:
                job.take_over()
            else:
                with_a_bucket_index(root)
                with pytest.raises(InvalidTable, match="bucket index"):
                    job.take_over()
            assert (root / ".hoodie/metadata").exists() is not fits
