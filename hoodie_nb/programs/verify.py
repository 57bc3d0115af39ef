"""The check of the demo: three readers, compared row by row with the board from pandas.

*Work flow.* Spark, our Arrow reader and hudi-rs each read the snapshot; `differences` describes
missing, surplus, duplicated and changed rows. `fsck` checks the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from hoodie_nb.api.tables import Table
from hoodie_nb.display import counted
from hoodie_nb.lab.experiments import flights
from hoodie_nb.programs.terminal import Screen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN = 3  # examples that are printed of each kind of difference


def readers(table: Table, spark: SparkSession) -> dict[str, Callable[[], pa.Table]]:
    """Return the demo's three readers of a snapshot, by name."""
    return {
        "Spark": lambda: table.to_spark(spark).select(*flights.SCHEMA.names).toArrow(),
        "Arrow": partial(table.to_arrow, meta=False),
        "hudi-rs": partial(read_with_hudi_rs, table.path),
    }


def read_with_hudi_rs(path: str) -> pa.Table:
    """Return the snapshot as Hudi's own reader in Rust sees it."""
    import hudi

    batches = hudi.HudiTableBuilder.from_base_uri(path).build().read(hudi.HudiReadOptions())
    return pa.Table.from_batches(batches) if batches else flights.SCHEMA.empty_table()


def verify(table: Table, spark: SparkSession, days: int, screen: Screen) -> bool:
    """Compare each reader with the board; return whether all are equal and fsck is clean."""
    wanted = flights.board(days=days)
    good = True
    for name, read in readers(table, spark).items():
        rows, wrong = _compared(read, wanted)
        verdict = "differ from the board:" if wrong else "equal the board, row for row"
        screen.say(f"  {name:<8} {rows:>9,} rows {verdict}")
        good &= not wrong
        for difference in wrong:
            screen.say(f"           - {difference}")
    findings = table.fsck()
    screen.say(f"  {'fsck':<8} {counted(len(findings), 'finding') if findings else 'clean':>14}")
    for finding in findings[:_SHOWN]:
        screen.say(f"           - {finding}")
    return good and not findings


def _compared(read: Callable[[], pa.Table], wanted: pd.DataFrame) -> tuple[int, list[str]]:
    """Return how many rows a reader sees and how they differ; a failure is a difference."""
    try:
        found = read()
    except Exception as error:  # any error: the other readers must still run
        return 0, [f"{type(error).__name__}: {str(error)[:300]}"]
    return found.num_rows, differences(found, wanted)


def differences(found: pa.Table, wanted: pd.DataFrame) -> list[str]:
    """Return the differences between a reader's rows and the board as text; empty if equal.

    Rows are compared by `flight_id`, in all columns of `flights.SCHEMA`; their order does not
    matter.
    """
    absent = [name for name in flights.SCHEMA.names if name not in found.column_names]
    if absent:
        return [f"columns {', '.join(absent)} are missing"]
    ours = _in_order(found)
    board = _in_order(pa.Table.from_pandas(wanted, flights.SCHEMA))
    if ours.equals(board):
        return []
    there = _by_id(board)
    here = _by_id(ours)
    doubled = {key: rows for key, rows in here.items() if len(rows) > 1}
    changed = {k: _change(here[k][0], there[k][0]) for k in here.keys() & there.keys()}
    kinds = {
        "missing": sorted(there.keys() - here.keys()),
        "too many": sorted(here.keys() - there.keys()),
        "there more than once": sorted(doubled),
        "changed": [f"{k}: {text}" for k, text in sorted(changed.items()) if text],
    }
    return [_described(kind, these) for kind, these in kinds.items() if these]


def _in_order(rows: pa.Table) -> pa.Table:
    chosen = rows.select(flights.SCHEMA.names).replace_schema_metadata(None).cast(flights.SCHEMA)
    return chosen.sort_by("flight_id").combine_chunks()


def _by_id(rows: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each flight; the input is sorted by flight."""
    return {k: list(these) for k, these in groupby(rows.to_pylist(), itemgetter("flight_id"))}


def _change(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return `status departed, not arrived`, empty if the rows are equal."""
    return ", ".join(f"{k} {found[k]}, not {v}" for k, v in wanted.items() if found[k] != v)


def _described(kind: str, examples: Sequence[str]) -> str:
    more = f" and {len(examples) - _SHOWN:,} more" if len(examples) > _SHOWN else ""
    rows = counted(len(examples), "row")
    return f"{rows} {kind}: {'; '.join(examples[:_SHOWN])}{more}"
