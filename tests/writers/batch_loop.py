"""A process that writes batches to one table in a loop: `python batch_loop.py ROOT LOG NAME COUNT`.

Each batch updates keys that all processes share (one whose NAME is upper case has partitions of
its own), and adds one row of its own, its mark, whose key is the batch's name. `LOG` gets a line
for each batch that was acknowledged: its name and instant.
With `-1` as COUNT it writes until it is killed. Restarted, it goes on after its last line and one
more: that batch may be in the table, too.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pyarrow as pa

from hoodie_nb import Table

KEYS = 40
MARKS = "marks"
SCHEMA = pa.schema(
    [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.string())]
)
Row = dict[str, object]


def batch(name: str) -> tuple[str, list[Row]]:
    """Return a batch's operation and its rows, which its name decides; the mark comes first.

    Ordering values repeat, so that also the order of the commits decides between rows.
    """
    draw = random.Random(name)
    own = name[0] if name[0].isupper() else ""
    rows: list[Row] = [
        {"id": f"k{k}{own}", "p": f"p{k % 3}{own}", "ts": draw.randrange(6), "v": name}
        for k in draw.sample(range(KEYS), 8)
    ]
    operation = "delete" if draw.random() < 0.2 else "upsert"
    mark: Row = {"id": name, "p": f"{MARKS}{own}", "ts": 0, "v": name}
    return operation, [mark, *rows]


def model(names: list[str]) -> dict[str, Row]:
    """Return the table's rows by key after these batches, in the order of their commits."""
    rows: dict[str, Row] = {}
    for name in names:
        operation, changes = batch(name)
        rows[name] = changes[0]
        for row in changes[1:]:
            key = str(row["id"])
            if key in rows and rows[key]["ts"] > row["ts"]:  # type: ignore[operator]
                continue
            if operation == "delete":
                rows.pop(key, None)
            else:
                rows[key] = row
    return rows


def deletable(rows: list[Row]) -> list[Row]:
    """Return the rows of a deleting batch: its mark is upserted, by the same commit."""
    return [{**row, "_hoodie_is_deleted": number > 0} for number, row in enumerate(rows)]


def store() -> dict[str, str] | None:
    """Return the options of the table's store, which a trial has put into the environment."""
    found: dict[str, str] | None = json.loads(os.environ.get("STORE", "null"))
    return found


def acknowledged(log: Path) -> dict[str, str]:
    """Return the instants of the batches that a process has logged, by name, in their order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return dict(line.split() for line in lines)


def main(root: str, log: str, name: str, count: str) -> None:
    """Write batches, and log each of them."""
    table = Table.open(root, storage_options=store())
    known = acknowledged(Path(log))
    last = max((int(n.partition("-")[2]) for n in known), default=-2)
    with open(log, "a") as acks:
        written = 0
        number = last + 2  # the one in between may be in the table
        while written != int(count):
            operation, rows = batch(f"{name}-{number}")
            given = pa.Table.from_pylist(deletable(rows) if operation == "delete" else rows)
            done = table.upsert(given, wait="60 seconds")
            assert done is not None
            acks.write(f"{name}-{number} {done.requested_time}\n")
            acks.flush()
            ahead = table.events.records("instant_written_ahead")
            print(name, number, sum(event.values["fits"] for event in ahead), flush=True)
            written += 1
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
