"""The shape of a table of the matrix, drawn by its seed: version, keys, partitions, rules, columns.

| dimension | values | by |
| --- | --- | --- |
| version | 6, 8, 9 (from the start, or upgraded after a few writes) | `seed % 3` |
| partitions | none; one; Hive style; encoded; several; several in Hive style | `seed // 3 % 6` |
| record key | one column, or two or three (several partition columns need several) | drawn |
| merge rule | event time, commit time, partial (not in version 9) | drawn |
| ordering | none, or of any type that has an order | drawn |
| value columns | three to seven of all types, always with `n` | drawn |
| sizes, retention by cleaning and archiving | as drawn | drawn |
| table type | merge-on-read from seed 10,000 on: version 8 or 9, an ordering of integers | seed |
"""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from core.every_type import EVERY
from history.traits import OPTIONS, SIZES

STYLES = ("none", "one", "hive", "encoded", "several", "several_hive")
_SEVERAL = ("several", "several_hive")
_KEYS: dict[pa.DataType, tuple[Any, ...]] = {
    pa.string(): ("a", "b,c", "k:1", "é", "😀", "\uffff", "Z", "10", "9", "x" * 200, " "),
    pa.int32(): (0, -1, 7, 10, 2**31 - 1, -(2**31), 42),
    pa.int64(): (0, -1, 7, 10, 2**63 - 1, -(2**63), 42),
    pa.date32(): (dt.date(1, 1, 1), dt.date(2026, 1, 2), dt.date(9999, 12, 31)),
    pa.bool_(): (True, False),
}
_PARTS: dict[pa.DataType, tuple[Any, ...]] = {
    pa.string(): ("x", "ÿ z", "Y2", None, ""),
    pa.int32(): (0, -5, 12, None),
    pa.date32(): (dt.date(2026, 1, 2), dt.date(1999, 12, 31), None),
    pa.bool_(): (True, False, None),
}
_ODD = ("a/b: c", "50% = 1/2", "größe", "[x]^", None, "")
_ORDERINGS = (
    *("int", "long", "long", "double", "float", "string", "date", "instant", "decimal", "bool"),
)
RECORDS = 24
_APPENDING = (
    {"hoodie_nb.append.above.bytes": 0, "hoodie.compact.inline.max.delta.commits": 3},
    {"hoodie_nb.append.above.bytes": 0},
)
LOGS = 10_000  # from this seed on, tables are merge-on-read


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table is created with, and the keys of its records."""

    version: int
    style: str
    record_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    merge_mode: str
    ordering: str | None
    schema: pa.Schema
    options: dict[str, object] = field(hash=False)
    created_as: int
    upgraded_after: int
    records: tuple[dict[str, Any], ...]  # key and partition columns
    merge_on_read: bool = False

    @classmethod
    def of(cls, seed: int, draw: random.Random) -> Shape:
        """Return the shape of a seed's table."""
        logs = seed >= LOGS
        versions = (8, 9, 9) if logs else (6, 8, 9)
        version = versions[seed % 3]
        style = STYLES[seed // 3 % 6]
        several = style in _SEVERAL
        keys = [f"k{n}" for n in range(draw.choice([2, 3]) if several else draw.choice([1, 1, 2]))]
        parts = [] if style == "none" else ["p", "q"][: 1 + several]
        kinds = {k: draw.choice([pa.string(), pa.string(), *_KEYS]) for k in keys}
        if len(keys) == 1 and kinds["k0"] in (pa.bool_(), pa.date32()):
            kinds["k0"] = pa.int64()  # they have too few values
        kinds |= {p: draw.choice([pa.string(), pa.string(), *_PARTS]) for p in parts}
        modes = [
            "event_time",
            "event_time",
            "commit_time",
            *["partial"] * (version != 9 and not logs),
        ]
        mode = draw.choice(modes)
        ordered = mode == "event_time" or draw.random() < 0.5
        orderings = ("int", "long") if logs else _ORDERINGS
        columns = draw.sample(sorted(EVERY), draw.randint(2, 6))
        fields = [(name, kind) for name, kind in kinds.items()] + [("n", pa.int32())]
        fields += [("ts", EVERY[draw.choice(orderings)][0])] * ordered
        fields += [(f"v_{name.replace(' ', '_')}", EVERY[name][0]) for name in columns]
        draw.shuffle(fields)
        retained = draw.choice([1, 2, 4, 10])
        made_new = logs or (mode != "partial" and draw.random() < 0.5)
        return cls(
            version=version,
            created_as=version if made_new else 6,
            style=style,
            record_key=tuple(keys),
            partition_by=tuple(parts),
            merge_mode=mode,
            ordering="ts" if ordered else None,
            schema=pa.schema(fields),
            options={
                **OPTIONS,
                **draw.choice(SIZES),
                **(draw.choice(_APPENDING) if logs else {}),
                "hoodie.clean.commits.retained": retained,
                "hoodie.keep.min.commits": retained + 1,
                "hoodie.keep.max.commits": retained + 3,
            },
            upgraded_after=draw.choice([0, 2, 3]),
            records=tuple(_record(keys, parts, kinds, style, draw) for _ in range(RECORDS)),
            merge_on_read=logs,
        )

    @property
    def given(self) -> dict[str, Any]:
        """Return the arguments of `Table.create`."""
        return {
            "schema": self.schema,
            "record_key": self.record_key,
            "partition_by": self.partition_by or None,
            "ordering": self.ordering,
            "merge_mode": self.merge_mode,
            "table_version": self.created_as,
            "table_type": "merge_on_read" if self.merge_on_read else "copy_on_write",
            "hive_style": "hive" in self.style,
            "url_encode": self.style == "encoded",
            "options": self.options,
        }


def _record(
    keys: list[str],
    parts: list[str],
    kinds: dict[str, pa.DataType],
    style: str,
    draw: random.Random,
) -> dict[str, Any]:
    """Return the key and partition columns of a record; a composite key may have nulls."""
    found = {name: draw.choice(_KEYS[kinds[name]]) for name in keys}
    if len(keys) > 1:
        for name in keys[1:]:
            if draw.random() < 0.2:
                found[name] = "" if kinds[name] == pa.string() and draw.random() < 0.5 else None
    elif kinds["k0"] == pa.string():
        found["k0"] += str(draw.randrange(3))
    odd = style == "encoded"
    for name in parts:
        found[name] = draw.choice(
            _ODD if odd and kinds[name] == pa.string() else _PARTS[kinds[name]]
        )
    return found
