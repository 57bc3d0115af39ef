"""The place of a new table: free of another table's records, and made by one process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from s3_server import S3Server
from tables import hudi_rows, schema_of, tree, without_meta
from test_journal import CONFIG, OURS, Life, rows
from test_lock_progress import in_other_process

from hoodie_nb import Table
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.clock import ManualClock
from hoodie_nb.errors import ConcurrentWriter, InvalidConfig, InvalidTable
from hoodie_nb.evidence.handle import create_table, open_table
from hoodie_nb.records.sealing import Interval
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import Entry, Storage

SCHEMA = schema_of()


def create(path: Path | str, **more: object) -> Table:
    """Make a table at `path`."""
    return Table.create(path, schema=SCHEMA, **{"record_key": "id", "partition_by": "p"} | more)


def test_a_table_inside_another_is_refused(tmp_path: Path) -> None:
    """Also through a link and in a folder that does not exist yet; beside it there is room."""
    outer = create(tmp_path / "t")
    outer.upsert(pa.Table.from_pylist([{"id": "a", "p": "x", "ts": 1, "v": 1}], SCHEMA))
    (tmp_path / "link").symlink_to(tmp_path / "t")
    before = tree(tmp_path / "t")
    for inner in ("t/in", "t/x/deep/in", "link/in"):
        with pytest.raises(InvalidTable, match=f"inside the folder of the table {tmp_path}/t, "):
            create(tmp_path / inner)
    assert tree(tmp_path / "t") == before
    create(tmp_path / "t2")
    assert len(hudi_rows(tmp_path / "t")) == 1


def test_a_table_inside_another_is_refused_on_a_store(s3_server: S3Server) -> None:
    """The bucket's other folders are free."""
    root, more = s3_server.new_root(), {"storage_options": s3_server.options}
    made = [create(path, **more).path for path in (f"{root}/t", f"{root}/t2")]
    for inner in ("in", "x/deep/in"):
        with pytest.raises(InvalidTable, match=f"inside the folder of the table {root}/t, "):
            create(f"{root}/t/{inner}", **more)
    assert made == [f"{root}/t", f"{root}/t2"]


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1000)], ids=["prepared", "sealed"])
def test_records_of_a_table_that_was_deleted_are_not_taken_over(
    tmp_path: Path, interval: Interval | None
) -> None:
    """`rm -r t/* t/.hoodie/*` leaves our folder: a new table there is refused until it is gone."""
    old = Life(tmp_path / "t", interval)
    old.checkpoint(("old", 1, 1, False))
    for path in (old.path / ".hoodie").iterdir():
        if path.name != ".hoodie_nb":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = tree(old.path)
    with pytest.raises(InvalidTable, match=r"remains of another table .*staged.*delete its folder"):
        create_table(old.path, CONFIG)
    assert tree(old.path) == before
    shutil.rmtree(old.path / ".hoodie")
    new = Table(create_table(old.path, CONFIG))
    new.upsert(rows(("new", 1, 1, False)))
    assert new.to_arrow(["id"]).column("id").to_pylist() == ["new"]


def test_what_an_interrupted_creation_leaves_is_no_obstacle(tmp_path: Path) -> None:
    """Lock, options, rules, a scratch file and empty folders: the table is made."""
    made = create(tmp_path / "t")
    made.upsert(pa.Table.from_pylist([{"id": "a", "p": "x", "ts": 1, "v": 1}], SCHEMA))
    left = tmp_path / "left" / OURS
    for name in ("tmp", "staged", "index"):
        (left / name).mkdir(parents=True)
    (left / "tmp" / "0123").write_bytes(b"{")
    for name in ("lock", "options.json", "rules.json"):
        shutil.copy(Path(made.path, OURS, name), left)
    assert create(tmp_path / "left").to_arrow().num_rows == 0


@pytest.mark.parametrize("mode", ["error", "open"])
@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_creation_that_dies_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, mode: str
) -> None:
    """At each file that it writes; then the table is made, whichever process has begun it."""
    put = LocalStorage.put
    written = 0
    for last in range(3):
        left = list[str]()

        def put_until(self: LocalStorage, path: str, content: bytes, **more: bool) -> None:
            if len(left) == last:  # noqa: B023 -- called in this round
                raise KeyboardInterrupt
            left.append(path)  # noqa: B023
            put(self, path, content, **more)

        root = tmp_path / str(last)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LocalStorage, "put", put_until)
            create(root, table_version=version)
        written += len(left)
        assert create(root, table_version=version, if_exists=mode).to_arrow().num_rows == 0
    assert written == 3
    (tmp_path / "old/.hoodie/timeline/history").mkdir(parents=True)
    with pytest.raises(InvalidTable, match="not a Hudi table"):
        create(tmp_path / "old", table_version=version, if_exists=mode)


def test_a_writer_does_not_make_a_table_again_that_was_moved(tmp_path: Path) -> None:
    """Nothing appears in its place, so it can be moved back; then the writer goes on."""
    table = create(tmp_path / "t")
    row = {"id": "a", "p": "x", "ts": 1, "v": 1}
    table.upsert([row])
    away = (tmp_path / "t").rename(tmp_path / "away")
    for write in (lambda: table.upsert([row]), table.clean):
        with pytest.raises(InvalidTable):
            write()
    assert not (tmp_path / "t").exists()
    away.rename(tmp_path / "t")
    table.upsert([row])
    assert table.to_arrow().num_rows == 1


def test_a_table_that_is_made_while_another_process_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened, although it was not there at the first look."""
    listed = LocalStorage.list_folder

    def late(self: LocalStorage, folder: str) -> list[Entry]:
        monkeypatch.undo()
        create(tmp_path / "t").upsert([{"id": "a", "p": "x", "ts": 1, "v": 1}])
        return listed(self, folder)

    monkeypatch.setattr(LocalStorage, "list_folder", late)
    assert create(tmp_path / "t", if_exists="open").to_arrow().num_rows == 1


@pytest.mark.usefixtures("at_once")
def test_a_place_that_another_process_has_locked_is_left_alone(tmp_path: Path) -> None:
    """While another process creates a table, `create` raises ConcurrentWriter, in every mode."""
    (tmp_path / "t/.hoodie").mkdir(parents=True)
    with in_other_process(tmp_path / "t"):
        before = tree(tmp_path / "t")
        for mode in ("error", "open", "replace"):
            with pytest.raises(ConcurrentWriter):
                create(tmp_path / "t", if_exists=mode)
        assert tree(tmp_path / "t") == before
    assert create(tmp_path / "t").to_arrow().num_rows == 0


@pytest.mark.parametrize("mode", ["error", "open"])
@pytest.mark.parametrize("ordering", [None, "ts"])
def test_of_two_processes_that_create_a_table_the_first_wins(
    tmp_path: Path, mode: str, ordering: str | None
) -> None:
    """The second one finds the table once it holds the lock, and changes neither rules nor rows."""
    path, agrees = tmp_path / "t", ordering == CONFIG.ordering

    @contextmanager
    def holding(_: Storage, **__: bool) -> Iterator[None]:
        wins = {"record_key": "id", "partition_by": "part", "ordering": ordering}
        first = Table.create(path, schema=CONFIG.schema, options={"small_file_bytes": 7}, **wins)
        first.upsert(rows(("a", 1, 1, False)))
        yield

    if mode == "open" and agrees:
        create_table(path, CONFIG, if_exists=mode, holding=holding)
    else:
        expected = InvalidTable if mode == "error" else InvalidConfig
        with pytest.raises(expected, match=r"has a table already|is a different table"):
            create_table(path, CONFIG, if_exists=mode, holding=holding)
    table = Table.open(path)
    assert table._handle.options.small_file_bytes == 7
    table.upsert(rows(("b", 1, 1, False)))
    assert len(without_meta(table.to_arrow())) == 2
    assert fsck(path) == []


def test_a_table_that_another_engine_creates_at_the_same_time_is_named(tmp_path: Path) -> None:
    """Properties that appear after both checks are kept, and the error says whose they are."""
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"

    class Meanwhile(ManualClock):
        def now_ms(self) -> int:
            properties.write_text("theirs")
            return super().now_ms()

    with pytest.raises(InvalidTable, match="another program has created a table"):
        create_table(tmp_path / "t", CONFIG, clock=Meanwhile())
    assert properties.read_text() == "theirs"


def test_options_of_an_existing_table_are_changed(tmp_path):
    """Only those that are given; without options the stored ones stay."""
    given = {"schema": pa.schema([("id", pa.string())]), "record_key": "id"}
    retained = {"hoodie.clean.commits.retained": 3}
    Table.create(tmp_path / "t", **given, options={"hoodie.parquet.max.file.size": 9_000_000})
    made = Table.create(tmp_path / "t", **given, if_exists="open", options=retained)
    Table.create(tmp_path / "t", **given, if_exists="open")
    for _ in range(6):
        made.upsert(pa.table({"id": ["a"]}))
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 4
    options = open_table(tmp_path / "t").options
    assert (options.max_file_bytes, options.clean_commits) == (9_000_000, 3)
