"""Streams beside archiving: a batch that was undone is not taken for an archived one."""

from __future__ import annotations

from pathlib import Path

import lives
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import FEW, active, archived, list_history
from tables import hudi_rows, without_meta
from test_clean_plan import make, upsert

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.on_spark.sources import ChangeStream
from hoodie_nb.reading.changes import changes_schema


def undo(root: Path, time17: str) -> None:
    """Undo a commit as another engine does: its files and its instant go."""
    for file in [*Path(root, ".hoodie").glob(f"{time17}.*"), *root.glob(f"*/*_{time17}.parquet")]:
        file.unlink()


def write(root: Path, count: int, first: int = 0) -> None:
    """Write batches that are not of the stream."""
    for number in range(first, first + count):
        Table.open(root).upsert([{"id": "z", "p": "par0", "ts": 1000 + number, "v": number}])


def of_stream(root: Path) -> list[str]:
    """Return the rows that the stream has written, as both readers see them."""
    found = without_meta(Table.open(root).to_arrow())
    assert hudi_rows(root) == found
    return [row for row in found if "'z'" not in row]


@pytest.mark.parametrize("number", [0, 1])
def test_an_undone_batch_is_replayed_after_the_timeline_moved_on(
    tmp_path: Path, number: int
) -> None:
    """The archive has no commit of it, so that the batch is not in the table: it is repeated."""
    root = lives.make(tmp_path / "t", **FEW)
    write(root, 1)
    lives.live(lives.opened(root), number + 1)
    undone = active(root)[-1]
    undo(root, undone)
    write(root, 12)
    assert undone < active(root)[0] and undone not in archived(root)
    events = lives.live(lives.opened(root), number + 1)
    assert len(events.records("batch_skipped")) == number
    assert of_stream(root) == lives.MODELS[number + 1]
    lives.live(lives.opened(root))
    write(root, 6, 20)
    events = lives.live(lives.opened(root))
    assert len(events.records("batch_skipped")) == len(lives.BATCHES)
    assert of_stream(root) == lives.MODELS[-1]


@pytest.mark.parametrize("kept", [False, True])
def test_a_stream_whose_archive_was_cleared_goes_on(tmp_path: Path, kept: bool) -> None:
    """Of commits that are older than the archive the stream's record says that they are in."""
    root = lives.make(tmp_path / "t", **FEW)
    lives.live(lives.opened(root), 4)
    write(root, 12)
    (log,) = Path(root, ".hoodie/archived").glob(".commits*")
    log.rename(log.with_name("moved"))
    if kept:
        write(root, 6, 20)
        assert archived(root)
    events = lives.live(lives.opened(root))
    assert len(events.records("batch_skipped")) == 4
    assert of_stream(root) == lives.MODELS[-1]


def test_a_damaged_archive_refuses_a_batch_that_it_may_have(tmp_path: Path) -> None:
    """It is neither skipped nor repeated; the error names the file and the remedies."""
    root = lives.make(tmp_path / "t", **FEW)
    lives.live(lives.opened(root), 2)
    undo(root, active(root)[-1])
    write(root, 12)
    (log,) = Path(root, ".hoodie/archived").glob(".commits*")
    whole = log.read_bytes()
    log.write_bytes(whole[:-100])
    with pytest.raises(InvalidTable, match=r"archive\.1.* cannot be read .* restore that file"):
        lives.live(lives.opened(root), 2)
    log.write_bytes(whole)
    lives.live(lives.opened(root), 2)
    assert of_stream(root) == lives.MODELS[2]


@pytest.mark.parametrize("version", [8, 9])
def test_the_archive_of_layout_2_is_asked(tmp_path: Path, version: int) -> None:
    """Its manifest names the files that count: others may be of an archiving that died."""
    root = lives.make(tmp_path / "t", version)
    folder = root / ".hoodie/timeline/history"
    folder.mkdir(exist_ok=True)
    times = [f"2026112107000000{n}" for n in range(5)]
    actions = pa.table(
        {"instantTime": times, "action": ["commit", "clean", *["replacecommit"] * 3]}
    )
    first, second = (f"{times[0]}_{times[4]}_{level}.parquet" for level in (0, 1))
    pq.write_table(actions, folder / first)

    def lacks(time17: str) -> bool:
        return open_table(root).timeline.archive.lacks(time17)

    assert open_table(root).timeline.archive.commits() == (frozenset(), "")
    list_history(root, first)
    assert [lacks(t) for t in times] == [False, True, False, False, False]
    assert lacks("20261121070000009") and not lacks("20261120000000000")
    (folder / second).write_bytes(b"PAR1")
    undone = pa.table({"instantTime": [times[1]], "action": ["commit"]})
    pq.write_table(undone, folder / f"{times[1]}_{times[1]}_0.parquet")
    assert lacks(times[1]) and not lacks(times[2])
    list_history(root, first, second)
    with pytest.raises(InvalidTable, match="restore that file from a backup"):
        lacks(times[1])
    assert not lacks(times[2])
    (folder / second).unlink()
    with pytest.raises(InvalidTable, match=f"a file of the archive is missing.*{second}"):
        lacks(times[1])
    (folder / "manifest_1").write_bytes(b"")
    with pytest.raises(InvalidTable, match="manifest_1 is damaged"):
        lacks(times[2])


def inserted(stream: ChangeStream, end: dict[str, str]) -> list[str]:
    """Return the rows that a stream reads from the start up to an offset."""
    found = pa.Table.from_batches(
        batch for part in stream.partitions({"instant": ""}, end) for batch in stream.read(part)
    )
    names = [name for name in found.column_names if not name.startswith("_")]
    return sorted(map(str, found.select(names).to_pylist()))


def test_a_first_batch_is_repeated_after_commits_were_archived(tmp_path: Path) -> None:
    """A stream of changes repeats all rows as of its end, until a clean deletes files of them."""
    table = make(tmp_path / "t", **FEW | {"hoodie.clean.commits.retained": 3})
    for number in range(8):
        upsert(table, number, [number % 3])
    columns = changes_schema(open_table(table.path))
    stream = ChangeStream(table.path, columns, "earliest")
    assert archived(table.path) and stream.initialOffset() == {"instant": ""}
    end = stream.latestOffset({"instant": ""}, None)
    before = inserted(stream, end)
    assert len(before) == 3
    upsert(table, 50, [1])
    upsert(table, 51, [1])
    assert inserted(ChangeStream(table.path, columns, "earliest"), end) == before
    for number in range(52, 60):
        upsert(table, number, [1])
    with pytest.raises(InvalidConfig, match="new checkpoint folder"):
        inserted(stream, end)
