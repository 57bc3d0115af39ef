"""The builder `table.merge(rows)`: clauses and their checks; two source rows of a key are refused.

*Semantics*: rows belong together if they have one record key and partition (only the key, if keys
are global). Of the clauses for a row the first one is used whose condition is true; without one the
row stays as it is. A clause states the new row: ordering values and the merge rule decide nothing,
as in an update by condition. With global keys, an update without `set` is refused for a row that is
in another partition in the source: an update moves no row.

| clause | for | names without a prefix | set=None |
| --- | --- | --- | --- |
| when_matched_update, when_matched_delete | rows on both sides | none | all |
| when_not_matched_insert | rows of the source only | the source's | all |
| when_not_matched_by_source_update, …_delete | rows of the table only | the table's | |

**Caveats**: the source is in memory, sorted by key; of the table one piece of a file at a time.
*Source:* MERGE INTO of Spark SQL; TableMerger of delta-rs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.other_engines import refuse_foreign_logs
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.intake.input import arrow_rows
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.batch import Commit
from hoodie_nb.local.clauses import Clause, NewValues, columns_of, whole_rows
from hoodie_nb.local.conditional import Changes, apply
from hoodie_nb.local.settling import settled
from hoodie_nb.lock.lock import writing
from hoodie_nb.reading.filters import RowFilter
from hoodie_nb.rows.ordering import first_of_run
from hoodie_nb.rows.taking import sort_rows
from hoodie_nb.types.row_search import plain
from hoodie_nb.types.schema import IS_DELETED, PARTITION_PATH, RECORD_KEY, check_stored_names

Set = Mapping[str, Any] | None
_UNKNOWN = re.compile(r"(?:no column |FieldRef\.Name\()(?!target\.)")  # of the source


class MergeInto:
    """A merge of rows into a table; its clauses are tried in the order in which they were given.

    `where` and the values of `set` are SQL text or pyarrow expressions over columns called
    `source.x` and `target.x`; values may also be constants that are no text.
    """

    def __init__(
        self, handle: TableHandle, data: object, on: str | Sequence[str] | None, events: EventLog
    ) -> None:
        if hasattr(data, "sparkSession"):
            raise InvalidConfig(
                "merge: the source is held in memory, and cannot be a Spark DataFrame: collect it, "
                "as in table.merge(df.toPandas()), or use table.upsert(df)"
            )
        handle.reload()
        refuse_foreign_logs(handle)
        keys = [*handle.config.record_key]
        both = keys if handle.config.global_keys else [*keys, *handle.config.partition_by]
        if on is not None and {*([on] if isinstance(on, str) else on)} != {*both}:
            raise InvalidConfig(f"merge: on={on!r}: rows of this table match by {both}")
        self._handle = handle
        self._events = events
        self._clauses: list[tuple[str, str, object, Set]] = []
        self._no_columns = isinstance(data, Sequence) and not data
        self._rows = arrow_rows(data, handle.schema, check_stored_names)

    def __repr__(self) -> str:
        return f"<merge, not yet written by execute(); rows in the source: {self._rows.num_rows:,}>"

    def when_matched_update(self, *, where: object = None, set: Set = None) -> MergeInto:
        """Set columns of rows whose key is on both sides; without `set` those of the source."""
        return self._with("matched", "update", where, set)

    def when_matched_delete(self, *, where: object = None) -> MergeInto:
        """Delete rows whose key is on both sides."""
        return self._with("matched", "delete", where)

    def when_not_matched_insert(self, *, where: object = None, set: Set = None) -> MergeInto:
        """Insert rows of the source whose key the table does not have.

        `set`: record key and partition are those of the source, and other columns are null.
        """
        return self._with("not_matched", "insert", where, set)

    def when_not_matched_by_source_update(
        self, *, set: Mapping[str, Any], where: object = None
    ) -> MergeInto:
        """Set columns of rows of the table whose key the source does not have."""
        return self._with("not_matched_by_source", "update", where, set)

    def when_not_matched_by_source_delete(self, *, where: object = None) -> MergeInto:
        """Delete rows of the table whose key the source does not have."""
        return self._with("not_matched_by_source", "delete", where)

    def _with(self, kind: str, action: str, where: object, values: Set = None) -> MergeInto:
        where = pc.scalar(True) if where is None else where
        self._clauses.append((kind, action, where, values))
        return self

    def execute(self, *, wait: str | float | None = None) -> Commit | None:
        """Merge in one commit, all or nothing; None if no row is to be changed.

        `wait`: as in `Table.upsert`. Raises InvalidConfig for a clause that does not fit, and
        InvalidInput for rows that do not, or if two of them have one key.
        """
        if not self._clauses:
            raise InvalidConfig(
                "merge: there is no clause: add one, such as when_not_matched_insert()"
            )
        handle = self._handle
        with writing(handle.storage, wait), handle.timeline.listed_once():
            handle.reload()
            coordinator = settled(handle, self._events)
            intake = Intake(handle.config, handle.schema)
            source = _source(self._rows, intake)
            clauses = [c for each in self._clauses for c in self._checked(intake, source, each)]
            return apply(coordinator, Changes(intake, clauses, source)) if clauses else None

    def _checked(
        self, intake: Intake, source: pa.Table, given: tuple[str, str, object, Set]
    ) -> Iterator[Clause]:
        """Yield a clause, or raise InvalidConfig or InvalidInput naming it.

        If it is for rows of an empty source, it is only checked. An empty list has no columns, and
        others may lack a type: then one that the table does not have may be right on another day.
        """
        of_source = not source.num_rows and given[0] != "not_matched_by_source"
        columns = source.schema.remove(0).remove(0)
        untyped = self._no_columns or any(map(pa.types.is_null, columns.types))
        try:
            clause = _clause(intake, columns, given)
        except (InvalidConfig, InvalidInput) as error:
            if of_source and untyped and _UNKNOWN.search(str(error)):
                return
            raise
        if not of_source:
            yield clause


def _source(rows: pa.Table, intake: Intake) -> pa.Table:
    """Return rows with their keys, sorted; columns of the table in its types, others as they are.

    Raises InvalidInput for rows without a usable key, and if two of them have one key.
    """
    check_stored_names(rows.schema)
    if IS_DELETED in rows.column_names:
        raise InvalidInput(
            f"merge: rename the column {IS_DELETED!r}, as to 'gone', and say what it means: "
            "when_matched_delete(where='source.gone')"
        )
    own = [name for name in rows.column_names if name in intake.schema.names]
    intake = Intake(intake.config, intake.schema, "delete")
    intake.check_names(rows.select(own).schema)
    keyed = intake.keyed(rows.select(own), pa.array(np.arange(rows.num_rows)))
    keyed = keyed.select([RECORD_KEY, PARTITION_PATH, *own])
    for name in rows.drop_columns(own).column_names:
        keyed = keyed.append_column(name, plain(rows.column(name)))
    alone = intake.config.global_keys  # the key identifies a row
    found = sort_rows(keyed, [RECORD_KEY] if alone else [PARTITION_PATH, RECORD_KEY])
    paths, keys = (found.column(n).combine_chunks() for n in (PARTITION_PATH, RECORD_KEY))
    again = np.flatnonzero(~(first_of_run(keys) if alone else first_of_run(paths, keys)))
    if len(again):
        raise InvalidInput(
            f"merge: two rows of the source have the key {keys[again[0]].as_py()!r}; keep one of "
            f"them ({len(again)} rows too many): a row of the table can only become one"
        )
    return found


def _clause(intake: Intake, source: pa.Schema, given: tuple[str, str, object, Set]) -> Clause:
    """Return a clause, checked, or raise InvalidConfig or InvalidInput naming it."""
    kind, action, where, values = given
    sides = {"source": source, "target": stored_schema(intake.schema)}
    sides.pop({"not_matched": "target", "not_matched_by_source": "source"}.get(kind, ""), None)
    over = columns_of(**sides)
    new = None
    try:
        condition = RowFilter.of(where, over)
        if values is not None:
            new = NewValues.of(values, intake, over)
        elif action != "delete":
            new = whole_rows(intake, source)
    except (InvalidConfig, InvalidInput) as error:
        raise type(error)(f"when_{kind}_{action}: {error}") from None
    return Clause(kind, condition, new)
