"""The expected table after a history: a dict with the same rows applied by the rules.

Two rows are the same record if their partition and their key columns are: a null and an empty
partition value are one partition; in a composite key null and the empty string are two values. Of
one record the greater `ts` wins, and of equal ones the newer arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
VisibleRow = tuple[tuple[str, Any], ...]
DELETED = "_hoodie_is_deleted"


def identity(row: Row) -> tuple[Any, ...]:
    """Return the identity of a row's record."""
    return (row["part"] or "", row["id"], row["sub"])


def visible(row: Row) -> VisibleRow:
    """Return a row as a reader shows it: its values without nulls and Hudi's own columns.

    Readers disagree about a null partition value, so it is shown as the empty one.
    """
    own = {k: v for k, v in row.items() if v is not None and not k.startswith("_hoodie_")}
    return tuple(sorted({**own, "part": row["part"] or ""}.items()))


def order(rows: Iterable[VisibleRow]) -> list[VisibleRow]:
    """Return rows in an order that does not depend on their storage."""
    return sorted(rows, key=repr)


class Model:
    """The rows of a table; of an insert job every row, else one a record.

    Rows of the job's source come again after their commit was undone; those of another engine are
    lost with the instant that wrote them.
    """

    def __init__(self, *, keeps_all: bool) -> None:
        self._keeps_all = keeps_all
        self._log: list[tuple[str | None, Row]] = []
        self._rows: dict[tuple[Any, ...], Row] = {}

    def write(self, rows: Iterable[Row], instant: str | None = None) -> None:
        """Apply rows in order: of the source, or of another engine's instant."""
        for row in rows:
            self._log.append((instant, row))
            self._apply(row)

    def _apply(self, row: Row) -> None:
        stored = self._rows.get(identity(row))
        if stored is None or row["ts"] >= stored["ts"]:
            self._rows[identity(row)] = row

    def withdraw(self, instants: Collection[str]) -> bool:
        """Forget the rows of other engines' instants; return whether there were any."""
        kept = [(instant, row) for instant, row in self._log if instant not in instants]
        lost, self._log, self._rows = len(kept) < len(self._log), kept, {}
        for _, row in kept:
            self._apply(row)
        return lost

    def knows(self, row: Row) -> bool:
        """Whether that record has ever been in the table."""
        return identity(row) in self._rows

    def snapshot(self) -> list[VisibleRow]:
        """Return the rows that are not deleted, as a reader shows them."""
        rows = (row for _, row in self._log) if self._keeps_all else self._rows.values()
        return order(visible(row) for row in rows if not row[DELETED])
