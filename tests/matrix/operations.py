"""The operations of a history: each writes to the table what it applies to the model."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from core.every_type import EVERY
from core.writes import commit_elsewhere
from matrix.conditions import Condition, condition
from matrix.history import MatrixHistory
from matrix.model import DELETED
from matrix.values import value, wider


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def _given(rows: pa.Table, draw: random.Random) -> Any:
    """Return the same rows in another form: other columns' order, pieces, types, a stream."""
    form = draw.choice(["as it is", "slice", "pieces", "stream", "columns", "types", "polars"])
    if form == "slice":
        return pa.concat_tables([rows, rows, rows]).combine_chunks().slice(len(rows), len(rows))
    if form == "pieces":
        return pa.concat_tables([rows.slice(n, 2) for n in range(0, len(rows), 2)])
    if form == "stream":
        return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(3))
    if form == "columns":
        return rows.select(draw.sample(rows.column_names, len(rows.column_names)))
    if form == "types":
        return rows.cast(pa.schema([f.with_type(_OTHER.get(f.type, f.type)) for f in rows.schema]))
    maps = any("map" in str(field.type) for field in rows.schema)
    return pl.DataFrame(rows) if form == "polars" and not maps else rows


_OTHER = {
    pa.string(): pa.dictionary(pa.int32(), pa.string()),
    pa.binary(): pa.large_binary(),
    pa.int32(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.timestamp("us", "UTC"): pa.timestamp("us", "Asia/Tokyo"),
}


def _sent(history: MatrixHistory) -> pa.Schema:
    """Return the columns of a batch: at times with the flag of deletes, or without a stored one."""
    schema, flag = history.model.schema, DELETED in history.model.schema.names
    if flag and history.draw.random() < 0.4:
        return schema.remove(schema.get_field_index(DELETED))
    if not flag and history.draw.random() < 0.4:
        return schema.append(pa.field(DELETED, pa.bool_()))
    return schema


def upsert(history: MatrixHistory) -> None:
    """Upsert rows: new and known, late and equal, some deleted, several of one key."""
    schema = _sent(history)
    rows = _table(history.rows(schema), schema)
    history.table.upsert(_given(rows, history.draw))
    history.model.upsert(rows.to_pylist())


def insert(history: MatrixHistory) -> None:
    """Insert rows of new keys, at times as a first load."""
    rows = _table(history.rows(history.model.schema, fresh=True), history.model.schema)
    write = history.draw.choice([history.table.insert, history.table.bulk_insert])
    if rows.num_rows:
        write(_given(rows, history.draw))
        history.model.upsert(rows.to_pylist())


def delete_rows(history: MatrixHistory) -> None:
    """Delete rows, with or without their ordering values."""
    names = [n for n in history.model.schema.names if n in history.identifying]
    if history.shape.ordering and history.draw.random() < 0.5:
        names.append(history.shape.ordering)
    schema = pa.schema([history.model.schema.field(name) for name in names])
    rows = _table(history.rows(schema, 6), schema)
    history.table.delete(_given(rows, history.draw))
    history.model.delete(rows.to_pylist())


def delete_keys(history: MatrixHistory) -> None:
    """Delete by a list of keys, which a table with one key column and no partitions allows."""
    if history.shape.partition_by or len(history.shape.record_key) > 1:
        delete_rows(history)
        return
    (name,) = history.shape.record_key
    keys = [row[name] for row in history.draw.sample(history.shape.records, 3)]
    history.table.delete(keys)
    history.model.delete([{name: key} for key in keys])


def _condition(history: MatrixHistory) -> Condition:
    """Return a condition that many rows meet, or any one."""
    if history.model.schema.field("n").type != pa.string() and history.draw.random() < 0.5:
        bound = history.draw.randrange(-2, 5)
        return [("n", "<", bound)], lambda row: row["n"] is not None and row["n"] < bound
    return condition(history.model.rows.values(), history.model.schema, history.draw)


def delete_where(history: MatrixHistory) -> None:
    """Delete rows by a condition."""
    where, matches = _condition(history)
    history.table.delete(where=where)
    history.model.change(matches, None)


def update(history: MatrixHistory) -> None:
    """Set a few columns by a condition, to constants, null, SQL or an expression."""
    where, matches = _condition(history)
    schema, draw = history.model.schema, history.draw
    ordering = "ts" if history.shape.merge_on_read else None  # a null would be refused there
    names = [n for n in schema.names if n not in (*history.fixed, ordering)]
    new: dict[str, Any] = {}
    stored: dict[str, Any] = {}
    for name in draw.sample(names, min(len(names), draw.randint(1, 2))):
        kind = schema.field(name).type
        if name == "n" and pa.types.is_integer(kind):
            new[name] = "n + 1" if len(history.operations) % 2 else pc.field("n") + 1
            stored[name] = lambda row: None if row["n"] is None else row["n"] + 1
        else:
            held = pa.scalar(value(kind, draw), kind)
            new[name], stored[name] = held, held.as_py()
    history.table.update(where=where, set=new)
    history.model.change(matches, stored)


def overwrite(history: MatrixHistory) -> None:
    """Replace the partitions that have rows in a batch, or the whole table."""
    scope = history.draw.choice(["partitions", "partitions", "table"])
    schema = _sent(history)
    rows = _table(history.rows(schema, 8), schema)
    history.table.insert_overwrite(_given(rows, history.draw), scope=scope)
    history.model.overwrite(rows.to_pylist(), all_partitions=scope == "table")


def clean(history: MatrixHistory) -> None:
    """Clean, and keep a few commits."""
    kept = history.draw.choice([1, 2, 3])
    history.table.clean(commits=kept)
    history.retain(kept)


def compact(history: MatrixHistory) -> None:
    """Merge small files, or logs: no row changes."""
    if history.shape.merge_on_read and history.draw.random() < 0.5:
        history.table.compact()
    else:
        history.table.cluster()


def savepoint(history: MatrixHistory) -> None:
    """Keep the newest commit; its snapshot stays readable whatever is cleaned or archived."""
    if history.past and history.table.savepoints().empty:
        history.saved = history.table.savepoint().requested_time


def _by_call(history: MatrixHistory, schema: pa.Schema) -> None:
    """Change the table's columns by `add_columns`, or bring new ones with a batch."""
    own = history.model.schema
    more = [f for f in schema if f not in [*own] and f.name not in (DELETED, "ts")]
    if not more:
        return
    kinds = {f.name: f.type for f in (*own, *more)}
    wide = pa.schema(list(kinds.items()))
    if more[0].name in own.names:
        history.table.compact()  # else its logs have the narrower type, and it is refused
        history.look()
        history.by_rust_from = max(history.times(), default="")
    if more[0].name in own.names or history.draw.random() < 0.5:
        assert history.table.add_columns(pa.schema(more)) is not None
        history.model.evolve(wide)
        return
    rows = _table(history.rows(wide), wide)
    history.table.upsert(rows, schema="merge")
    history.model.evolve(wide)
    history.model.upsert(rows.to_pylist())


def _elsewhere(history: MatrixHistory, schema: pa.Schema) -> None:
    """Let another engine change the table's columns with a commit of fresh rows, if any.

    Of merge-on-read tables, which we would then write no more, they are changed by a call.
    """
    if history.shape.merge_on_read:
        _by_call(history, schema)
        return
    rows = _table(history.rows(schema, 4, fresh=True), schema)
    if not rows.num_rows:
        return
    commit_elsewhere(history.table.path, rows)
    history.model.evolve(schema)
    history.model.upsert(rows.to_pylist())


def add_column(history: MatrixHistory) -> None:
    """Let another engine add a column of any type, or the flag of deletes."""
    schema, draw = history.model.schema, history.draw
    name = draw.choice([f"x{len(schema)}", f"x{len(schema)}", DELETED])
    kind = pa.bool_() if name == DELETED else EVERY[draw.choice(sorted(EVERY))][0]
    if name not in schema.names:
        _elsewhere(history, schema.insert(draw.randint(0, len(schema)), pa.field(name, kind)))


def widen(history: MatrixHistory) -> None:
    """Let another engine change a column to a wider type."""
    schema, draw = history.model.schema, history.draw
    names = [n for n in schema.names if n not in history.grown and n not in history.identifying]
    for name in draw.sample(names, len(names)):
        at = schema.get_field_index(name)
        kind = wider(schema.field(at).type, draw)
        if kind is not None and not (name == "ts" and kind == pa.string()):
            history.grown.add(name)
            _elsewhere(history, schema.set(at, pa.field(name, kind)))
            return


def lacks_a_column(history: MatrixHistory) -> None:
    """Send a batch without a column, or with an unknown one: it is refused by name."""
    schema, draw = history.model.schema, history.draw
    name = draw.choice([n for n in schema.names if n != DELETED])
    lacking = schema.remove(schema.get_field_index(name))
    history.refused(_table(history.rows(lacking, 3), lacking), rf"'{name}'")
    more = schema.append(pa.field("unknown", pa.int64()))
    history.refused(_table(history.rows(more, 3), more), r"\['unknown'\] are not in the table")


def nothing(history: MatrixHistory) -> None:
    """Send no rows: there is no commit."""
    assert history.table.upsert(history.model.schema.empty_table()) is None


OPERATIONS: dict[str, tuple[int, Callable[[MatrixHistory], None]]] = {
    "upsert": (14, upsert),
    "insert": (3, insert),
    "delete_rows": (3, delete_rows),
    "delete_keys": (1, delete_keys),
    "delete_where": (2, delete_where),
    "update": (3, update),
    "overwrite": (3, overwrite),
    "clean": (1, clean),
    "compact": (1, compact),
    "savepoint": (1, savepoint),
    "add_column": (2, add_column),
    "widen": (2, widen),
    "lacks_a_column": (1, lacks_a_column),
    "nothing": (1, nothing),
}
EARLY = ("upsert", "insert", "delete_rows", "update")  # what the tests' upgrade can convert
