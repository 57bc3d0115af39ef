"""Hudi's options of a write: the page, and what each means, without Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.spark_format.hudi_options import ARGUMENTS, FIXED, REFUSED, WITHOUT_EFFECT, parse

PAGE = (Path(__file__).parents[2] / "docs" / "hudi-options.md").read_text()
W = "hoodie.datasource.write."


def cells(heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading."""
    part = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    return [line.strip("| ").split(" | ") for line in lines]


def names(cell: str) -> list[str]:
    """Return the names in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_lists_the_options_of_the_code():
    """Each table of the page has exactly the options, arguments, values and reasons of the code."""
    arguments = {
        n: names(row[1])[0] for row in cells("Options that define a table") for n in names(row[0])
    }
    assert arguments == {name: argument for name, (argument, _) in ARGUMENTS.items()}
    fixed = {
        names(row[0])[0]: (names(row[1])[0], row[2]) for row in cells("Options with only one value")
    }
    assert fixed == FIXED
    assert [names(row[0])[0] for row in cells("Options without effect")] == [*WITHOUT_EFFECT]
    assert {names(row[0])[0]: row[1] for row in cells("Refused options")} == REFUSED


@pytest.mark.parametrize("option", ["hoodie.table.name", *FIXED, *WITHOUT_EFFECT])
def test_supported_options_are_accepted(option):
    """Each option that the page calls supported is accepted with the value that it names."""
    parse({"path": "/t", option: FIXED.get(option, ("true", ""))[0]})


REFUSALS = {
    "an unknown name suggests a near one": (
        {f"{W}recordkey.fields": "id"},
        r"did you mean .*recordkey\.field\?",
    ),
    "the table type is known": ({"hoodie.table.type": "LSM"}, "COPY_ON_WRITE or MERGE_ON_READ"),
    "another value of a fixed option": ({"hoodie.metadata.enable": "true"}, "no metadata table"),
    "catalogs": ({"hoodie.datasource.hive_sync.database": "d"}, "registered in a catalog"),
    "a lock provider": ({"hoodie.write.lock.provider": "x"}, "one process write at a time"),
    "keys from expressions": ({f"{W}partitionpath.field": "at:TIMESTAMP"}, "names of columns"),
    "several ordering columns": ({"hoodie.table.ordering.fields": "a,b"}, "only one ordering"),
    "another index": ({"hoodie.index.type": "BUCKET"}, "index of its own"),
    "a key generator": (
        {f"{W}keygenerator.class": "x.TimestampBasedKeyGenerator"},
        "compute a column",
    ),
    "a payload class": ({f"{W}payload.class": "x.Mine"}, "OverwriteWithLatestAvroPayload"),
    "a custom merge mode": ({"hoodie.record.merge.mode": "CUSTOM"}, "EVENT_TIME_ORDERING"),
    "an operation": ({f"{W}operation": "bootstrap"}, "choose from"),
    "a value of a table option": ({"hoodie.parquet.small.file.limit": "big"}, "is not a size"),
    "two names that differ": (
        {"hoodie.table.version": "6", "hoodie.write.table.version": "8"},
        "mean the same, but differ",
    ),
    "an argument of Table.create": ({"record_key": "id"}, f"did you mean {W}recordkey.field"),
    "a store's option for a folder": ({"aws_region": "x"}, "is unknown"),
    "asynchronous progress": ({"asyncProgressTrackingEnabled": "true"}, "is unknown"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_honoured_is_refused_with_the_remedy(case):
    """An unknown or unsupported option, or value, names the reason or what to write instead."""
    given, message = REFUSALS[case]
    with pytest.raises(InvalidConfig, match=message):
        parse({"path": "/t", **given})


def test_all_refused_options_are_named_at_once():
    """One error has a line for each, in the order given; one refusal alone is one line."""
    wrong = {
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.enable": "true",
        "hoodie.table.type": "LSM",
        "hoodie.parquet.small.file.limit": "big",
        "hoodie.cleaner.parallelism": "3",
    }
    with pytest.raises(InvalidConfig) as caught:
        parse({"path": "/t", **wrong, f"{W}recordkey.field": "id"})
    first, *lines = str(caught.value).splitlines()
    assert first == f"{len(wrong)} options are refused:"
    named = zip(lines, wrong, strict=True)
    assert all(line.startswith("- ") and name in line for line, name in named)
    with pytest.raises(InvalidConfig) as caught:
        parse({"path": "/t", "hoodie.metadata.enable": "true"})
    assert len(str(caught.value).splitlines()) == 1
    given = parse({"path": "/t", f"{W}recordkey.field": "a", f"{W}partitionpath.field": "b"})
    with pytest.raises(InvalidConfig, match=r"(?s)2 options are .*has id: .*has p: "):
        given.refuse_others(TableConfig("t", ("id",), ("p",), "ts", merge_mode="event_time"))
    given = parse({"path": "/t", "hoodie.index.type": "GLOBAL_BLOOM"})
    with pytest.raises(InvalidConfig, match=r"without it, a key that moves .* is there twice"):
        given.refuse_others(TableConfig("t", ("id",), ("p",), "ts", merge_mode="event_time"))


@pytest.mark.parametrize(
    ("operation", "overwrite", "stream", "expected"),
    [
        (None, False, False, "upsert"),
        ("INSERT", False, False, "insert"),
        ("insert_overwrite", False, False, "insert_overwrite"),
        ("bulk_insert", True, False, "insert_overwrite_table"),
        ("insert_overwrite_table", True, False, "insert_overwrite_table"),
        ("delete", False, True, "delete"),
    ],
)
def test_the_operation_follows_from_option_and_mode(operation, overwrite, stream, expected):
    """mode("overwrite") replaces the table, whatever would add the rows."""
    given = {"path": "/t", "checkpointLocation": "/c"} | (
        {f"{W}operation": operation} if operation else {}
    )
    assert parse(given, overwrite=overwrite, stream=stream).operation == expected


@pytest.mark.parametrize(
    ("operation", "overwrite", "stream"),
    [
        ("delete", True, False),
        ("insert_overwrite", True, False),
        ("bulk_insert", False, True),
        ("upsert", True, True),
    ],
)
def test_operations_that_a_mode_contradicts_are_refused(operation, overwrite, stream):
    """Deletes with mode("overwrite") and partial overwrites; in streams all but row changes."""
    with pytest.raises(InvalidConfig, match=r"mode\('overwrite'\)|in a stream|outputMode"):
        parse(
            {"path": "/t", "checkpointLocation": "/c", f"{W}operation": operation},
            overwrite=overwrite,
            stream=stream,
        )


def test_an_existing_table_must_agree():
    """Options that repeat the table's definition are accepted, others name both values."""
    config = TableConfig("t", ("id",), ("p",), "ts", merge_mode="event_time")
    same = {
        f"{W}recordkey.field": "id",
        f"{W}partitionpath.field": "p",
        "hoodie.table.ordering.fields": "ts",
        "hoodie.table.name": "t",
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
        f"{W}keygenerator.type": "SIMPLE",
        "hoodie.index.type": "BLOOM",
    }
    parse({"path": "/t", **same}).refuse_others(config)
    with pytest.raises(
        InvalidConfig, match=r"recordkey\.field says a,b, but the table at /t has id"
    ):
        parse({"path": "/t", f"{W}recordkey.field": "a, b"}).refuse_others(config)


def test_a_new_table_needs_a_record_key():
    """Without a record key the message names the option; a path is needed in any case."""
    with pytest.raises(InvalidConfig, match=r"hoodie\.datasource\.write\.recordkey\.field"):
        parse({"path": "/t"}).arguments()
    with pytest.raises(InvalidConfig, match="CREATE TEMP VIEW"):
        parse({})
