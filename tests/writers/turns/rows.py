"""The traits of a trial, the rows of its batches, and the table that they make."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from hoodie_nb import Table

COLUMNS = [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.string())]
SCHEMA = pa.schema(COLUMNS)
GIVEN = SCHEMA.append(pa.field("_hoodie_is_deleted", pa.bool_()))
Row = dict[str, Any]


@dataclass(frozen=True)
class Traits:
    """What a trial's seed decides before it begins."""

    seed: int
    version: int
    table_type: str
    actors: tuple[str, ...]
    keys: int
    partitions: int
    ordered: bool
    marks_apart: bool
    narrow: bool  # a batch has rows of one partition only
    batches: int
    crashes: int
    skews_ms: tuple[int, ...] = (0,)  # of the clocks
    options: dict[str, object] = field(default_factory=dict)

    @property
    def logs(self) -> bool:
        """Whether the table is merge-on-read."""
        return self.table_type == "merge_on_read"

    @classmethod
    def of(cls, seed: int, kinds: str, version: int | None, table_type: str | None) -> Traits:
        """Draw the traits of a seed; `kinds` names the actors, version and type may be given."""
        draw = random.Random(f"traits {seed}")
        logs = draw.random() < 0.4
        table_type = table_type or ("merge_on_read" if logs else "copy_on_write")
        drawn = draw.choice((9, 9, 8) if table_type == "merge_on_read" else (9, 9, 8, 6))
        kept = draw.choice((1, 2, 10))
        options = {
            "hoodie.clean.commits.retained": kept,
            "hoodie.parquet.small.file.limit": draw.choice((0, 100_000_000)),
            "hoodie_nb.append.above.bytes": draw.choice((0, 0, 1 << 20)),
            "hoodie.compact.inline.max.delta.commits": draw.choice((1, 2, 10)),
            "hoodie_nb.index.load.budget": draw.choice((0, 4)),
            **draw.choice(
                ({}, {"hoodie.keep.min.commits": kept + 1, "hoodie.keep.max.commits": kept + 2})
            ),
        }
        return cls(
            seed,
            version or drawn,
            table_type,
            tuple(draw.choice(kinds.split("|"))),
            draw.randint(2, 6),
            draw.randint(1, 3),
            draw.random() < 0.7,
            draw.random() < 0.5,
            draw.random() < 0.5,
            draw.randint(2, 3),
            draw.choice((0, 1, 1, 2, 3)),
            draw.choice(((0,), (0, -3_600_000, 3_600_000))),
            options,
        )

    def make(self, root: Path) -> None:
        """Create the table."""
        Table.create(
            root,
            schema=SCHEMA,
            record_key="id",
            partition_by="p",
            ordering="ts" if self.ordered else None,
            table_version=self.version,
            table_type=self.table_type,
            options=self.options,
        )

    def batch(self, name: str) -> tuple[str, list[Row]]:
        """Return a batch's operation and its rows, which its name decides; the mark comes first."""
        draw = random.Random(f"{self.seed} {name}")
        one = draw.randrange(self.partitions)
        apart = "marks" if self.marks_apart and not self.narrow else f"p{one}"
        mark = _row(name, apart, 0, name, deleted=False)
        operation = "insert" if draw.random() < 0.1 else "upsert"
        if operation == "insert":
            return operation, [mark, _row(f"{name}+", apart, 1, name, deleted=False)]
        rows = [
            _row(
                f"k{k}", f"p{k % self.partitions}", draw.randint(1, 2), name,
                deleted=draw.random() < 0.25,
            )
            for k in draw.sample(range(self.keys), draw.randint(1, min(4, self.keys)))
            if k % self.partitions == one or not self.narrow
        ]  # fmt: skip
        return operation, [mark, *rows]

    def model(self, names: list[str]) -> dict[str, Row]:
        """Return the table's rows by key after these batches, in the order of their commits."""
        rows: dict[str, Row] = {}
        for name in names:
            for row in self.batch(name)[1]:
                stored = rows.get(row["id"])
                if stored and self.ordered and stored["ts"] > row["ts"]:
                    continue
                if row["_hoodie_is_deleted"]:
                    rows.pop(row["id"], None)
                else:
                    rows[row["id"]] = row
        return rows

    def snapshot(self, names: list[str]) -> list[str]:
        """Return the rows after these batches, as `visible` gives those of a table."""
        return visible(list(self.model(names).values()))


def _row(key: str, partition: str, ts: int, value: str, *, deleted: bool) -> Row:
    return {"id": key, "p": partition, "ts": ts, "v": value, "_hoodie_is_deleted": deleted}


def visible(rows: list[Row]) -> list[str]:
    """Return rows as sorted texts of their own columns."""
    return sorted(" ".join(f"{row[name]}" for name, _ in COLUMNS) for row in rows)
