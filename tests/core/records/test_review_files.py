"""Backups of prepared records, parts of instants, a missing timeline, similar names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from faults import Crash
from tables import schema_of, tree
from test_journal import CONFIG, OURS, SCHEMA, Life, life, rows, upsert_elsewhere
from test_meanwhile import disown, put_back, write_batch

from hoodie_nb import Table, failpoints
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.definition.keys import refuse_colliding_folders
from hoodie_nb.errors import InvalidInput, InvalidTable, WriteFailed
from hoodie_nb.evidence.handle import create_table, open_table
from hoodie_nb.index import upkeep
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.sealing import Interval
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import Entry

__all__ = ["life"]  # a fixture
ROW = {"id": "f", "part": "p", "ts": 1, "v": 7}


def backup_of(one: Life) -> Path:
    """Return a copy of our current folder."""
    return Path(shutil.copytree(one.path / OURS, one.path.with_name("backup")))


# --- prepared records of a backup ---------------------------------------------------------------


@pytest.mark.parametrize("folders", [["."], ["prepared", "staged"], ["prepared"]])
def test_a_prepared_record_of_a_backup_is_not_applied_again(life, folders):
    """The instant was redone and completed after the backup: no deleted key returns."""
    one = life()
    one.checkpoint(("base", 1, 1, False))
    one.job.complete(one.number)
    one.checkpoint(("k", 5, 5, False), ("b", 1, 1, False))
    backup = backup_of(one)
    upsert_elsewhere(one, SCHEMA, ROW)
    disown(one)
    one.start()
    one.job.checkpointing.complete()
    for given in (("k", 6, 0, True), ("z", 6, 0, False)):
        one.checkpoint(given)
        one.job.complete(one.number)
    before = one.rows_by_key()
    for folder in folders:
        put_back(one, backup, folder)
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == before == {"base": (1, 1), "b": (1, 1), "f": (1, 7), "z": (6, 0)}
    assert list(one.path.glob(f"{OURS}/prepared/*")) == []
    assert fsck(one.path) == []


@pytest.mark.parametrize("undone", [False, True])
def test_a_prepared_insert_of_a_backup_is_not_inserted_again(life, undone):
    """The insert was redone, or rolled back and retried: its rows are in the table once."""
    one = life()
    write_batch(one, 0, "a")
    if undone:

        def breaks() -> None:
            backup_of(one)
            one.clock.ms += 1000
            raise WriteFailed("by the test")

        failpoints.call("coord.prepare.post", breaks)
        with pytest.raises(WriteFailed):
            write_batch(one, 1, "b")
        failpoints.arm("")
    else:
        one.die("coord.prepare.post", lambda: write_batch(one, 1, "b"))
        backup_of(one)
        upsert_elsewhere(one, SCHEMA, ROW)
        disown(one)
    write_batch(one, 1, "b")
    write_batch(one, 2, "c")
    put_back(one, one.path.with_name("backup"), ".")
    write_batch(one, 3, "d")
    found = sorted(row["id"] for row in to_arrow(one.handle()).to_pylist())
    assert found == ["a", "b", "c", "d", *(() if undone else ("f",))]


# --- an index that learns from a part of an instant ---------------------------------------------


def lost_record(one: Life) -> None:
    """Die after the completed file and lose the instant's second record."""
    one.die("coord.commit.post", one.job.checkpointing.complete)
    sorted(one.path.glob(f"{OURS}/prepared/*"))[1].unlink()


def full_disk(one: Life) -> None:
    """The index cannot be saved, and the process dies between the removals of two records."""
    storage, remove, seen = one.job.table.storage, one.job.table.storage.remove, []

    def dies(path: str) -> bool:
        seen.extend([path] * ("/prepared/" in path))
        if len(seen) == 2:
            storage.dead = True
            raise Crash(path)
        return remove(path)

    def fails(*_: object) -> None:
        raise OSError(28, "full")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(storage, "remove", dies)
        patch.setattr(upkeep, "_learned", fails)
        one.job.checkpointing.complete()


def restored(one: Life) -> None:
    """Our folder is restored to its state before the second checkpoint."""
    one.job.checkpointing.complete()
    put_back(one, one.path.with_name("backup"), ".")


@pytest.mark.parametrize("event", [lost_record, full_disk, restored])
def test_the_index_does_not_learn_from_a_part_of_an_instant(life, event):
    """If one of an instant's two records is lost, its keys are not duplicated."""
    one = life()
    one.checkpoint(("a", 1, 1, False))
    one.job.lose(one.number)
    backup_of(one)
    one.checkpoint(("b", 1, 1, False))
    event(one)
    one.start()
    one.job.checkpointing.complete()
    no_packing = json.dumps({"hoodie.parquet.small.file.limit": 0})
    (one.path / OURS / "options.json").write_text(no_packing)
    Table.open(one.path).upsert(rows(("a", 2, 2, False), ("b", 2, 2, False)))
    assert one.rows_by_key() == {"a": (2, 2), "b": (2, 2)}
    assert fsck(one.path) == []


# --- a timeline that is gone --------------------------------------------------------------------


def test_base_files_without_any_commit_refuse_writers(tmp_path: Path) -> None:
    """They would count as archived after the next commit, and duplicate rows with the same keys."""
    data = pa.Table.from_pylist([{"id": "a", "p": "x", "ts": 1, "v": 1}], schema_of())
    table = Table.create(
        tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p", ordering="ts"
    )
    table.upsert(data)
    instants = [f for f in (tmp_path / "t/.hoodie").iterdir() if f.name[0].isdigit()]
    for file in instants:
        file.rename(tmp_path / file.name)
    before = tree(tmp_path / "t")
    with pytest.raises(InvalidTable, match=r"has no commit, but x/.*Restore .hoodie from a backup"):
        Table.open(tmp_path / "t").upsert(data)
    assert tree(tmp_path / "t") == before
    for file in instants:
        (tmp_path / file.name).rename(file)
    Table.open(tmp_path / "t").upsert(data)
    assert Table.open(tmp_path / "t").to_arrow().num_rows == 1
    for file in [*instants, *(tmp_path / "t/.hoodie").glob("2*"), *(tmp_path / "t/x").glob("*.p*")]:
        file.unlink(missing_ok=True)
    Table.open(tmp_path / "t").upsert(data)
    assert Table.open(tmp_path / "t").to_arrow().num_rows == 1


# --- a file system that takes two names for one -------------------------------------------------


class Deaf(LocalStorage):
    """A folder on a case-insensitive file system."""

    def entry(self, path: str) -> Entry | None:
        """Look for the name, ignoring case."""
        folder, _, name = path.rpartition("/")
        entries = self.list_folder(folder)
        return next((e for e in entries if e.name.lower() == name.lower()), None)


@pytest.mark.parametrize("pair", [("NY", "ny"), ("é", "e\u0301"), ("a/B", "a/b"), ("A/b", "a/b")])
def test_partitions_that_would_share_a_folder_are_refused(tmp_path: Path, pair) -> None:
    """The second one is refused, in one batch or later; other file systems keep both."""
    (tmp_path / ".hoodie").mkdir()
    deaf, plain = Deaf(tmp_path), LocalStorage(tmp_path)
    for known, written in ((pair[:1], pair[1:]), ((), pair), (("x",), pair)):
        with pytest.raises(InvalidInput, match="are one folder"):
            refuse_colliding_folders(deaf, written, known)
        refuse_colliding_folders(plain, written, known)
    refuse_colliding_folders(deaf, pair, pair)
    refuse_colliding_folders(deaf, ("x", "z"), ("x", "y"))


def test_a_write_asks_for_partitions_that_would_share_a_folder(tmp_path: Path, monkeypatch) -> None:
    """Nothing remains of the refused batch, and the table still works."""
    monkeypatch.setattr(LocalStorage, "entry", Deaf.entry)
    table = Table.create(tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p")
    data = [{"id": "a", "p": p, "ts": 1, "v": 1} for p in ("NY", "ny")]
    table.upsert(pa.Table.from_pylist(data[:1], schema_of()))
    with pytest.raises(InvalidInput, match="'NY' and 'ny' are one folder"):
        table.upsert(pa.Table.from_pylist(data[1:], schema_of()))
    assert table.fsck() == []
    table.upsert(pa.Table.from_pylist(data[:1], schema_of()))
    assert table.to_arrow().num_rows == 1


@pytest.mark.parametrize("earlier", ["committed", "sealed", "the same"])
def test_a_seal_is_refused_if_its_partitions_would_share_a_folder(
    tmp_path: Path, monkeypatch, earlier: str
) -> None:
    """A checkpoint that its interval could not commit is refused before it is sealed."""
    monkeypatch.setattr(LocalStorage, "entry", Deaf.entry)
    table = Table.create(tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p")
    upper, lower, other = (
        pa.Table.from_pylist([{"id": p, "p": p, "ts": 1, "v": 1}], schema_of())
        for p in ("NY", "ny", "LA")
    )
    if earlier == "committed":
        table.upsert(upper)
    job = LocalJob(open_table(table.path), interval=Interval(checkpoints=9))
    job.write(upper)
    if earlier != "the same":
        job.checkpoint(1)
        job.complete(1)
    job.write(lower)
    with pytest.raises(InvalidInput, match="'NY' and 'ny' are one folder"):
        job.checkpoint(2)
    table = Table.open(table.path)
    table.upsert(other)  # completes what is sealed
    held = {"LA"} if earlier == "the same" else {"LA", "NY"}
    assert {*table.to_arrow(["p"]).column("p").to_pylist()} == held
    assert table.fsck() == []


# --- what other engines have planned ------------------------------------------------------------


@pytest.mark.parametrize("action", ["indexing", "compaction", "replacecommit"])
def test_a_plan_of_another_engine_is_not_repaired(tmp_path: Path, action: str) -> None:
    """`repair` leaves such a plan alone, so `fsck` does not recommend it."""
    table = Table.create(tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p")
    (tmp_path / f"t/.hoodie/20260101000000000.{action}.requested").write_bytes(b"what to do")
    (finding,) = table.fsck()
    assert action in finding.what
    assert finding.fix == "let the engine that planned it complete or cancel it"


@pytest.mark.parametrize("operation", ["insert", "upsert"])
def test_a_damaged_completed_file_under_newer_commits_is_not_written_again(
    tmp_path: Path, operation: str
) -> None:
    """A prepared record that a backup restored does not replace a commit that others build on."""
    table = Table(create_table(tmp_path / "t", CONFIG))
    table.upsert(rows(("z", 1, 1, False)))
    job = LocalJob(open_table(table.path), operation=operation)
    job.write(rows(("a", 1, 1, False)))
    job.checkpoint(1)
    ours, backup = Path(table.path, OURS), tmp_path / "backup"
    shutil.copytree(ours, backup)
    job.checkpointing.complete()
    table.upsert(rows(("newer", 1, 1, False)))
    for name in ("prepared", "staged"):
        shutil.copytree(backup / name, ours / name, dirs_exist_ok=True)
    done = sorted(Path(table.path, ".hoodie").glob("*.commit"))[1]
    whole = done.read_bytes()
    done.write_bytes(whole.replace(b'_hoodie_nb_checksum": "', b'_hoodie_nb_checksum": "X'))
    for _ in range(2):
        with pytest.raises(InvalidTable, match=f"{done.name} is not a readable commit .*restore"):
            Table.open(table.path).upsert(rows(("n", 1, 1, False)))
    done.write_bytes(whole)
    Table.open(table.path).upsert(rows(("n", 1, 1, False)))
    ids = table.to_arrow(["id"]).column("id").to_pylist()
    assert sorted(ids) == ["a", "n", "newer", "z"]
    assert fsck(table.path) == []
