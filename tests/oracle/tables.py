"""Tables for the judge: every column type, every layout, and a model of what must be in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from hoodie_nb import Table

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("line", pa.int32()),
        ("part", pa.string()),
        ("day", pa.date32()),
        ("at", pa.int64()),
        ("ratio", pa.float32()),
        ("price", pa.float64()),
        ("open", pa.bool_()),
        ("raw", pa.binary()),
        ("seen", pa.timestamp("us", "UTC")),
        ("money", pa.decimal128(10, 2)),
        ("large", pa.decimal128(38, 18)),
        ("tags", pa.list_(pa.string())),
        ("legs", pa.list_(pa.struct([("to", pa.string()), ("cost", pa.decimal128(9, 3))]))),
        ("marks", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("city", pa.string()), ("point", pa.struct([("x", pa.float64())]))])),
    ]
)
_LOCAL = pa.field("local", pa.timestamp("us"))
_MAY_BE_NULL = [*SCHEMA.names[5:], _LOCAL.name]
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Layout:
    """How a table is laid out: what `Table.create` takes, and the values of its partitions.

    `local_times` adds a timestamp without a time zone; hudi-rs 0.5 has no type for that.
    """

    record_key: tuple[str, ...] = ("id",)
    partition_by: tuple[str, ...] = ("part",)
    ordering: str | None = "at"
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[str | None, ...] = ("north", "south")
    local_times: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Return the table's columns."""
        return SCHEMA.append(_LOCAL) if self.local_times else SCHEMA

    def create(self, path: str | os.PathLike[str], **more: Any) -> Table:
        """Create an empty table with this library, `more` as for `Table.create`."""
        return Table.create(
            path,
            schema=self.schema,
            record_key=self.record_key,
            partition_by=self.partition_by,
            ordering=self.ordering,
            **self.options,
            **more,
        )


_TINY = {
    "options": {
        "hoodie.parquet.max.file.size": 9000,
        "hoodie.parquet.small.file.limit": 5000,
        "hoodie.copyonwrite.record.size.estimate": 1024,
    }
}
_ODD = ("a/b: c", "50% = 1/2", "größe", None)
LAYOUTS = {
    "simple": Layout(),
    "many_file_groups": Layout(options=_TINY),
    "hive_style": Layout(options={"hive_style": True}),
    "url_encoded": Layout(options={"url_encode": True}, parts=_ODD),
    "by_date": Layout(partition_by=("day",)),
    "unpartitioned": Layout(partition_by=()),
    "unpartitioned_two_keys": Layout(("id", "line"), ()),
    "composite": Layout(
        ("id", "line"),
        ("part", "day"),
        options={"hive_style": True, "url_encode": True},
        parts=_ODD,
    ),
    "local_times": Layout(local_times=True),
    "without_ordering": Layout(ordering=None),
}


def row(number: int, layout: Layout, version: int = 1) -> Row:
    """Return one version of row `number`: every cell follows from both; each 7th is all null."""
    salt = 1000 * version + number
    place = {"city": f"city {salt}", "point": {"x": salt / 7} if number % 3 else None}
    moment = timedelta(hours=salt, microseconds=salt)
    full: Row = {
        "id": f"k{number:04d}" if number % 5 else f"ключ {number}",
        "line": number % 3,
        "part": layout.parts[number % len(layout.parts)],
        "day": date(2026, 1, 1) + timedelta(days=number % 2),
        "at": 100 * version,
        "ratio": salt / 8,
        "price": salt / 3,
        "open": number % 2 == 0,
        "raw": salt.to_bytes(3, "big"),
        "seen": _EPOCH + moment,
        "local": (_EPOCH - moment).replace(tzinfo=None),
        "money": Decimal(-salt) / 100,
        "large": Decimal(salt) + Decimal("0.000000000000000001"),
        "tags": [f"t{salt}", None, ""][: number % 4],
        "legs": [{"to": f"x{salt}", "cost": Decimal("1.125")}, {"to": None, "cost": None}],
        "marks": [(f"m{number}", salt), ("none", None)][: number % 3],  # in order of the keys
        "place": place,
    }
    return full | dict.fromkeys(_MAY_BE_NULL if number % 7 == 0 else ())


def rows(numbers: Iterable[int], layout: Layout, version: int = 1) -> pa.Table:
    """Return one version of these rows as a table of `SCHEMA`."""
    return pa.Table.from_pylist([row(n, layout, version) for n in numbers], layout.schema)


@dataclass
class Model:
    """What a table must hold: a dict, and the rule that the newest ordering value wins."""

    layout: Layout
    held: dict[int, int] = field(default_factory=dict)

    def upsert(self, numbers: Iterable[int], version: int) -> pa.Table:
        """Store one version of these rows where it is not older; return them to be written."""
        numbers = list(numbers)
        for number in numbers:
            late = self.layout.ordering is not None and version < self.held.get(number, 0)
            self.held[number] = self.held[number] if late else version
        return rows(numbers, self.layout, version)

    def delete(self, numbers: Iterable[int]) -> pa.Table:
        """Remove these rows; return them as they were, to be deleted."""
        gone = [row(n, self.layout, self.held.pop(n)) for n in numbers]
        return pa.Table.from_pylist(gone, self.layout.schema)

    def cells(self) -> list[Row]:
        """Return the rows that must be there, in the order of `readers.cells`."""
        held = [row(n, self.layout, v) for n, v in self.held.items()]
        found = pa.Table.from_pylist(held, self.layout.schema).to_pylist()
        return sorted(found, key=lambda r: r["id"])


def words(layout: Layout) -> dict[str, str]:
    """Return Java's options for a new table with this layout."""
    write = "hoodie.datasource.write."
    options = {
        f"{write}recordkey.field": ",".join(layout.record_key),
        f"{write}partitionpath.field": ",".join(layout.partition_by),
        f"{write}precombine.field": layout.ordering or "",
        f"{write}hive_style_partitioning": str(layout.options.get("hive_style", False)),
        f"{write}partitionpath.urlencode": str(layout.options.get("url_encode", False)),
    }
    return {name: value for name, value in options.items() if value}


def appending(layout: Layout, version: int, **more: str) -> dict[str, str]:
    """Return the options with which Java upserts into log files of a table of ours."""
    return {
        **words(layout),
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.write.table.version": str(version),
        "hoodie.write.auto.upgrade": "false",
        "hoodie.metadata.enable": "false",
        "hoodie.index.type": "BLOOM",
        "hoodie.compact.inline": "false",
        "hoodie.datasource.write.operation": "upsert",
        **more,
    }
