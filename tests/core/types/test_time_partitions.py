"""Partition paths made of a time, as Java's TimestampBasedKeyGenerator makes them."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tables import Model, hudi_rows, without_meta

from hoodie_nb import Table
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import InvalidInput, InvalidTable
from hoodie_nb.types.time_partitions import PREFIX, TimePartition, Unclear

EPOCH = dt.datetime(1970, 1, 1)
UNITS = {"SECONDS": 10**6, "MILLISECONDS": 10**3, "MICROSECONDS": 1, "HOURS": 3_600 * 10**6}
NUMBERS = {"timestamp.type": "UNIX_TIMESTAMP", "output.dateformat": "yyyy/MM/dd", "timezone": "UTC"}
TEXTS = {
    "timestamp.type": "DATE_STRING",
    "input.dateformat": "yyyy-MM-dd HH:mm:ss",
    "output.dateformat": "yyyyMM/dd",
}


def of(own: dict[str, str]) -> TimePartition:
    """Return what the properties say, which are given without their prefix."""
    found = TimePartition.of({PREFIX + name: value for name, value in own.items()})
    assert found is not None
    return found


def made(path: Path, own: dict[str, str], kind: pa.DataType, **more: Any) -> Table:
    """Return an empty table with these properties, which only another engine can create."""
    schema = pa.schema([("id", pa.string()), ("t", kind), ("ts", pa.int64())])
    keys = {"record_key": "id", "partition_by": "t", "ordering": "ts"}
    Table.create(path, schema=schema, **keys, **more)
    lines = {"hoodie.table.keygenerator.type": "TIMESTAMP"}
    lines["hoodie.table.keygenerator.class"] = "org.apache.hudi.keygen.TimestampBasedKeyGenerator"
    lines |= {PREFIX + name: value for name, value in own.items()}
    with open(path / ".hoodie/hoodie.properties", "a") as file:
        file.writelines(f"{name}={value}\n" for name, value in lines.items())
    (path / RULES).unlink()
    return Table.open(path)


@pytest.mark.parametrize("hours", [0, 8, -5])
@pytest.mark.parametrize("unit", UNITS)
def test_numbers_become_the_folders_of_their_time(unit: str, hours: int) -> None:
    """Random times in a unit have the text of Python's datetime in the zone; null is 1."""
    zone = f"GMT{hours:+}:00" if hours else "UTC"
    own = {"timestamp.type": "SCALAR", "timestamp.scalar.time.unit": unit, "timezone": zone}
    own["output.dateformat"] = "yyyy-MM/dd HH"
    rng, micros = random.Random(unit + zone), UNITS[unit]
    values = [rng.randrange(-(10**15), 10**15) // micros for _ in range(500)]
    texts, bad = of(own).texts(pa.array([*values, None], pa.int64()))
    expected = []
    for value in [*values, 1]:
        cut = int(value * micros / 1000)  # whole milliseconds, towards zero
        moment = EPOCH + dt.timedelta(milliseconds=cut, hours=hours)
        expected.append(moment.strftime("%Y-%m/%d %H"))
    assert texts.to_pylist() == expected and not any(bad.to_pylist())


def test_times_at_the_ends_of_the_calendar_are_kept_apart() -> None:
    """The years 1 and 9999 have folders, in the zone of the path; times beyond have none."""
    first, last = -62_135_596_800, 253_402_300_799
    values = pa.array([first, first - 1, last, last + 1, 2**63 - 1, -(2**63)], pa.int64())
    texts, bad = of(NUMBERS).texts(values)
    assert bad.to_pylist() == [False, True, False, True, True, True]
    assert (texts[0].as_py(), texts[2].as_py()) == ("0001/01/01", "9999/12/31")
    _, bad = of(NUMBERS | {"timezone": "GMT+1"}).texts(values.slice(0, 3))
    assert bad.to_pylist() == [False, True, True]


def test_texts_are_rearranged_or_refused() -> None:
    """A text in exactly the input's format gives the path; one that is no real time gives none."""
    good = {
        "2020-02-29 23:59:59": "202002/29",
        "0001-01-01 00:00:00": "000101/01",
        None: "197001/01",
    }
    bad = [
        "2021-02-29 00:00:00",
        "2020-13-01 00:00:00",
        "2020-00-01 00:00:00",
        "2020-01-00 00:00:00",
    ]
    bad += [
        "2020-01-01 24:00:00",
        "2020-01-01 00:60:00",
        "2020-1-1 00:00:00",
        "0000-01-01 00:00:00",
    ]
    bad += ["", "2020-01-01", "2020-01-01 00:00:00\n", "\u0662020-01-01 00:00:00"]
    texts, none = of(TEXTS).texts(pa.array([*good, *bad], pa.string()))
    assert texts.to_pylist()[: len(good)] == [*good.values()]
    assert none.to_pylist() == [False] * len(good) + [True] * len(bad)


@pytest.mark.parametrize(
    "own",
    [
        {**NUMBERS, "timezone": ""},  # of the JVM that wrote it
        {**NUMBERS, "timezone": "America/New_York"},
        {**NUMBERS, "output.dateformat": "yyyy/ww"},
        {**NUMBERS, "output.dateformat": "yyyy//MM"},
        {**NUMBERS, "output.dateformat": "/yyyy"},
        {**NUMBERS, "output.dateformat": "yyyy'Q'MM"},
        {**NUMBERS, "output.dateformat": "yyyy:MM"},
        {**NUMBERS, "timestamp.type": "MIXED"},
        {**NUMBERS, "timestamp.type": "SCALAR"},
        {**NUMBERS, "something.new": "1"},
        {**TEXTS, "input.dateformat": "yyyy-MM-dd,yyyyMMdd"},
        {**TEXTS, "input.dateformat": "yyyy-MM"},
        {**TEXTS, "input.dateformat": "yyyy-MM-dd'T'HH:mm:ssZ"},
        {**TEXTS, "output.timezone": "UTC"},
        {"timestamp.type": "UNIX_TIMESTAMP"},
    ],
)
def test_what_the_properties_do_not_say_is_refused(tmp_path: Path, own: dict[str, str]) -> None:
    """A table whose paths are not known is read, and a write is refused with the property."""
    with pytest.raises(Unclear, match=PREFIX):
        of(own)
    kind = pa.string() if own["timestamp.type"] == "DATE_STRING" else pa.int64()
    table = made(tmp_path / "t", own, kind)
    with pytest.raises(InvalidTable, match=f"{PREFIX}.*write it with the engine"):
        table.upsert(pa.table({"id": ["a"], "t": pa.nulls(1, kind), "ts": [1]}))
    assert table.to_arrow().num_rows == 0


def test_a_custom_key_generator_is_refused(tmp_path: Path) -> None:
    """Java does not store the formats of a CustomKeyGenerator."""
    table = made(tmp_path / "t", {}, pa.int64())
    with open(tmp_path / "t/.hoodie/hoodie.properties", "a") as file:
        file.write("hoodie.table.keygenerator.type=CUSTOM\nhoodie.table.keygenerator.class=\n")
        file.write("hoodie.table.partition.fields=t:TIMESTAMP\n")
    with pytest.raises(InvalidTable, match=r"keygenerator.type=CUSTOM.*write it with the engine"):
        table.upsert([{"id": "a", "t": 1, "ts": 1}])


@pytest.mark.parametrize("more", [{}, {"hive_style": True}, {"url_encode": True}])
@pytest.mark.parametrize("own", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_upserts_find_their_rows_again(
    tmp_path: Path, own: dict[str, str], more: dict[str, bool]
) -> None:
    """Random upserts and deletes equal a dict, for hudi-rs too; filters on the column are right."""
    kind = pa.string() if own is TEXTS else pa.int64()
    table, model, rng = (
        made(tmp_path / "t", own, kind, **more),
        Model(partition="day"),
        random.Random(1),
    )
    for number in range(6):
        rows = []
        for _ in range(12):
            moment = EPOCH + dt.timedelta(hours=rng.randrange(72))
            t = str(moment) if own is TEXTS else int((moment - EPOCH).total_seconds())
            key = f"k{rng.randrange(6)}"
            rows.append({"id": key, "t": t, "ts": rng.randrange(100), "day": str(moment.date())})
        given = [{name: row[name] for name in ("id", "t", "ts")} for row in rows]
        if number % 3 == 2:
            table.delete(given)
            model.delete(rows)
        else:
            table.upsert(given)
            model.upsert(rows)
    for row in model.rows.values():
        del row["day"]  # type: ignore[attr-defined]
    assert without_meta(table.to_arrow()) == model.snapshot() == hudi_rows(tmp_path / "t")
    assert (
        table.fsck() == [] and len({*table.to_arrow()["_hoodie_partition_path"].to_pylist()}) == 3
    )
    for row in model.rows.values():
        found = table.to_arrow(["id", "t"], filters=[("t", "=", row["t"])]).to_pylist()
        assert {"id": row["id"], "t": row["t"]} in found
        assert {entry["t"] for entry in found} == {row["t"]}


def test_bad_times_are_bad_rows(tmp_path: Path) -> None:
    """A time without a folder fails the batch by column and value, or goes into quarantine."""
    table = made(tmp_path / "t", TEXTS, pa.string())
    rows = [{"id": "a", "t": "2020-01-01 00:00:00", "ts": 1}, {"id": "b", "t": "2020-1-1", "ts": 1}]
    with pytest.raises(
        InvalidInput, match=r"column 't'.*format yyyy-MM-dd HH:mm:ss in 1 row.*2020-1"
    ):
        table.upsert(rows)
    commit = table.upsert(rows, on_bad_record="quarantine")
    assert commit is not None and (commit.inserts, commit.quarantined) == (1, 1)
    assert table.to_arrow()["_hoodie_partition_path"].to_pylist() == ["202001/01"]


def test_columns_of_another_type_are_refused(tmp_path: Path) -> None:
    """Texts where the properties mean numbers: Java would fail or guess."""
    table = made(tmp_path / "t", NUMBERS, pa.string())
    with pytest.raises(InvalidTable, match=r"column 't' has type string.*times in numbers"):
        table.upsert([{"id": "a", "t": "1", "ts": 1}])


def test_fine_units_are_cut_towards_zero() -> None:
    """A microsecond before 1970 is in its first millisecond, as Java computes it."""
    own = NUMBERS | {"timestamp.type": "EPOCHMICROSECONDS", "output.dateformat": "yyyy HH"}
    texts, _ = of(own).texts(pa.array([-1, -999, -1000, 0], pa.int64()))
    assert texts.to_pylist() == ["1970 00", "1970 00", "1969 23", "1970 00"]


def test_a_format_without_its_key_generator_is_refused(tmp_path: Path) -> None:
    """The formats alone do not say that the paths are made by them."""
    table = made(tmp_path / "t", NUMBERS, pa.int64())
    with open(tmp_path / "t/.hoodie/hoodie.properties", "a") as file:
        file.write("hoodie.table.keygenerator.type=\nhoodie.table.keygenerator.class=\n")
    with pytest.raises(InvalidTable, match="another key generator"):
        table.upsert([{"id": "a", "t": 1, "ts": 1}])


def test_a_damaged_format_is_noticed(tmp_path: Path) -> None:
    """The format is kept a second time at the first write: another one would move the rows."""
    table = made(tmp_path / "t", NUMBERS, pa.int64())
    table.upsert([{"id": "a", "t": 0, "ts": 1}])  # 1970/01/01, the same in both formats
    path = tmp_path / "t/.hoodie/hoodie.properties"
    path.write_text(path.read_text().replace("yyyy/MM/dd", "yyyy/dd/MM"))
    with pytest.raises(InvalidTable, match=r"times=.*a line is damaged or lost"):
        Table.open(tmp_path / "t").upsert([{"id": "a", "t": 0, "ts": 2}])
