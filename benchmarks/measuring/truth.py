"""The expected table, computed by DuckDB from the input files alone, and the comparison with it.

A fingerprint is the number of rows, the sum of `v_i` and the sum of a hash over all cells of each
row: it depends on the rows, not on their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

_COUNTED = """
SELECT count(*), sum(v_i)::BIGINT, sum(hash(
  key::VARCHAR, day::VARCHAR, ts::BIGINT, v_d::DOUBLE, v_i::INTEGER, v_s20::VARCHAR, v_s40::VARCHAR
)::HUGEINT)::VARCHAR FROM """
_NEWEST = "(SELECT *, row_number() OVER (PARTITION BY key ORDER BY ts DESC) AS age FROM {})"


class WrongResult(Exception):
    """An arm's table is not what the input files say."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What two equal tables have in common."""

    rows: int
    sum_v_i: int
    cells: str


def expected(files: Sequence[Path]) -> Fingerprint:
    """Return the fingerprint of the newest row of each key in these files."""
    listed = ", ".join(f"'{path}'" for path in files)
    newest = _NEWEST.format(f"read_parquet([{listed}])")
    return _counted(f"{newest} WHERE age = 1")


def fingerprint(rows: pa.Table) -> Fingerprint:
    """Return the fingerprint of an Arrow table."""
    return _counted("rows", rows)


def check(arm: str, found: Fingerprint, wanted: Fingerprint) -> None:
    """Raise WrongResult if the two differ."""
    if found != wanted:
        raise WrongResult(f"{arm}: the table has {found}, the input files say {wanted}")


def _counted(source: str, rows: pa.Table | None = None) -> Fingerprint:
    with duckdb.connect() as connection:
        if rows is not None:
            connection.register("rows", rows)
        found = connection.execute(_COUNTED + source).fetchone()
    return Fingerprint(*found)
