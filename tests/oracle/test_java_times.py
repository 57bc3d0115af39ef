"""Partition paths made of a time: Java and this library upsert the same keys in turn."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import hudi
import pyarrow as pa
import pytest

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.types.time_partitions import PREFIX

from .client import BLOOM, Judge

pytestmark = pytest.mark.oracle
EPOCH = dt.datetime(1970, 1, 1)
WRITE = "hoodie.datasource.write."
TYPE, OUT, ZONE = "timestamp.type", "output.dateformat", "timezone"
DAY = 86_400
CASES: dict[str, tuple[dict[str, str], str | int]] = {  # properties; a text's format, or unit in µs
    "seconds": ({TYPE: "UNIX_TIMESTAMP", OUT: "yyyy/MM/dd", ZONE: "UTC"}, 10**6),
    "millis": ({TYPE: "EPOCHMILLISECONDS", OUT: "yyyyMMdd-HH", ZONE: "GMT+8:00"}, 10**3),
    "micros": ({TYPE: "EPOCHMICROSECONDS", OUT: "yyyy-MM-dd HH", ZONE: "GMT-5:30"}, 1),
    "output zone": (
        {TYPE: "UNIX_TIMESTAMP", OUT: "HH/dd.MM_yyyy", "output.timezone": "GMT+1"},
        10**6,
    ),
    "days": (
        {TYPE: "SCALAR", "timestamp.scalar.time.unit": "days", OUT: "yyyyMM", ZONE: "GMT"},
        DAY * 10**6,
    ),
    "texts": (
        {TYPE: "DATE_STRING", "input.dateformat": "yyyy-MM-dd HH:mm:ss", OUT: "yyyy/MM/dd HH"},
        "%Y-%m-%d %H:%M:%S",
    ),
    "texts of a zone": (
        {TYPE: "DATE_STRING", "input.dateformat": "yyyyMMdd'T'HH", OUT: "HH/yyyy", ZONE: "GMT-5"},
        "%Y%m%dT%H",
    ),
}
STYLES = {
    "plain": {},
    "hive": {WRITE + "hive_style_partitioning": "true"},
    "encoded": {WRITE + "partitionpath.urlencode": "true"},
}


def rows(draw: random.Random, form: str | int, version: int) -> pa.Table:
    """Return random rows: few keys and times, so that keys come again; the times may be null."""
    times = [None, *(draw.randrange(-3 * 10**15, 3 * 10**15) for _ in range(5))]
    found: dict[tuple[str, Any], dict[str, Any]] = {}
    for time in times:
        value: Any = None
        if time is not None and isinstance(form, str):
            value = (EPOCH + dt.timedelta(microseconds=time)).strftime(form)
        elif time is not None:
            value = time // int(form)
        for key in ("a", "b"):
            found[key, value] = {"id": key, "t": value, "v": version}
    kind = pa.string() if isinstance(form, str) else pa.int64()
    schema = pa.schema([("id", pa.string()), ("t", kind), ("v", pa.int64())])
    return pa.Table.from_pylist([*found.values()], schema=schema)


def paths(found: pa.Table) -> list[tuple[Any, ...]]:
    """Return partition path, key and version of each row."""
    names = ("_hoodie_partition_path", "_hoodie_record_key", "v")
    return sorted(zip(*(found.column(name).to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", ["6", "9"])
def test_both_find_the_rows_of_the_other(
    judge: Judge, tmp_path: Path, case: str, style: str, version: str
) -> None:
    """Rows that one of them wrote are updated by the other, in the same folder, never doubled."""
    own, form = CASES[case]
    draw, path = random.Random(case + style + version), tmp_path / "t"
    words = BLOOM | STYLES[style] | {PREFIX + name: value for name, value in own.items()}
    words |= {"hoodie.write.table.version": version, WRITE + "precombine.field": "v"}
    words |= {WRITE + "recordkey.field": "id", WRITE + "partitionpath.field": "t"}
    words[WRITE + "keygenerator.class"] = "org.apache.hudi.keygen.TimestampBasedKeyGenerator"
    first, second = (rows(draw, form, 1) for _ in range(2))
    judge.write(path, first, words, mode="overwrite")
    table = Table.open(path)
    table.upsert(first.set_column(2, "v", pa.array([2] * first.num_rows)))
    before = paths(judge.read(path))
    assert {v for _, _, v in before} == {2} and before == paths(table.to_arrow())
    assert len({entry[:2] for entry in before}) == len(before)
    table.upsert(second)
    judge.write(path, second.set_column(2, "v", pa.array([3] * second.num_rows)), words)
    after = paths(judge.read(path))
    assert after == paths(Table.open(path).to_arrow())
    assert len({entry[:2] for entry in after}) == len(after)
    assert {v for _, _, v in after} == {2, 3} and table.fsck() == []
    batches = hudi.HudiTableBuilder.from_base_uri(str(path)).build().read(hudi.HudiReadOptions())
    assert paths(pa.Table.from_batches(batches)) == after


@pytest.mark.parametrize("generator", ["TimestampBased", "Custom"])
def test_tables_whose_paths_are_not_known_are_only_read(
    judge: Judge, tmp_path: Path, generator: str
) -> None:
    """Without a time zone, or with a CustomKeyGenerator, Java's properties do not say enough."""
    own = {PREFIX + TYPE: "UNIX_TIMESTAMP", PREFIX + OUT: "yyyy-MM-dd"}
    words = BLOOM | own | {WRITE + "precombine.field": "v", WRITE + "recordkey.field": "id"}
    words[WRITE + "partitionpath.field"] = "t:TIMESTAMP" if generator == "Custom" else "t"
    words[WRITE + "keygenerator.class"] = f"org.apache.hudi.keygen.{generator}KeyGenerator"
    given = rows(random.Random(1), 10**6, 1).slice(2)
    judge.write(tmp_path / "t", given, words, mode="overwrite")
    table = Table.open(tmp_path / "t")
    assert table.to_arrow().num_rows == given.num_rows
    with pytest.raises(InvalidTable, match="write it with the engine that created it"):
        table.upsert(given)
