"""What a small write costs does not grow with the number of commits before it."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

import hoodie_nb as hn

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
_looks: Counter[str] | None = None


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _looks is not None and event in ("os.scandir", "os.listdir", "open"):
        where = str(arguments[0])
        if isinstance(arguments[0], int):  # an open folder
            where = os.readlink(f"/proc/self/fd/{arguments[0]}")
        if event != "open":
            name = "timeline" if where.endswith("/.hoodie") else os.path.basename(where)
            _looks["listed " + ("a folder of ours" if "/.hoodie/" in where else name)] += 1
        elif where.endswith(".commit"):
            _looks["commits read"] += 1


sys.addaudithook(_hook)


@contextmanager
def looks() -> Iterator[Counter[str]]:
    """Count the folders that are listed and the commits that are opened."""
    global _looks
    _looks = found = Counter()
    try:
        yield found
    finally:
        _looks = None


def make(path: Path) -> hn.Table:
    """Make an empty table of three partitions."""
    keys = {"record_key": "id", "partition_by": "part", "ordering": "ts"}
    return hn.Table.create(path, schema=SCHEMA, **keys)


def row(number: int) -> pa.Table:
    """Return one row of one of fifty keys."""
    columns = [[f"k{number % 50:02d}"], [f"p{number % 3}"], [number]]
    return pa.table(columns, schema=SCHEMA)


def upserted(table: hn.Table, number: int) -> Counter[str]:
    """Return what one upsert looked at."""
    with looks() as found:
        table.upsert(row(number))
    return found


def test_a_write_lists_the_timeline_three_times(tmp_path):
    """A Table lists the timeline when a call begins, when it recovers, and before it commits.

    It lists no partition, and looks at no more for the sixtieth commit than for the tenth.
    """
    table = make(tmp_path / "t")
    found = [upserted(table, number) for number in range(60)]
    early, late = found[10], found[59]
    assert late == early
    assert late["listed timeline"] == 3 and not [n for n in late if n in ("listed p0", "listed t")]
    assert late["commits read"] <= 1


def test_a_table_that_was_just_opened_reads_few_commits(tmp_path):
    """A fresh Table lists each partition once more, and reads no more than the newest commits."""
    make(tmp_path / "t")
    found = [upserted(hn.Table.open(tmp_path / "t"), number) for number in range(60)]
    early, late = found[40], found[59]
    assert late == early
    assert late["listed timeline"] <= 4 and late["commits read"] <= 32
