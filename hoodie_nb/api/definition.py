"""Arguments of `Table.create`: defaults, allowed values and combinations, forms of a schema."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from hoodie_nb.buckets.global_keys import refuse_global
from hoodie_nb.buckets.pipelines import AUTO, PIPELINES
from hoodie_nb.definition.keys import check_key_types
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.storage.addresses import folder_name
from hoodie_nb.timeline.commits import OVERWRITES
from hoodie_nb.types.merge_modes import MODES
from hoodie_nb.types.schema import ordering_objection, refuse_not_null, storable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

Columns: TypeAlias = pa.Schema | Mapping[str, pa.DataType]
_ALLOWED = {
    "pipeline": (AUTO, *PIPELINES),
    "index": ("bloom+state", "bloom", "state", None),
    "operation": ("upsert", "insert", "delete"),
    "commit_on": ("checkpoint", "write"),
    "placement": ("executors", "driver", "auto"),
    "on_bad_record": ("fail", "quarantine"),
    "output_mode": ("append", "update"),
    "schema": ("fixed", "merge"),
    "table_type": ("copy_on_write", "merge_on_read"),
}


def check_supported(**given: object) -> None:
    """Raise InvalidConfig for an option value that is not supported."""
    for name, value in given.items():
        choices = _ALLOWED[name]
        if value not in choices:
            raise InvalidConfig(f"{name}={value!r} is not supported: choose from {list(choices)}")


def defined(
    path: str | os.PathLike[str],
    *,
    schema: pa.Schema | StructType | str,
    record_key: str | Sequence[str],
    partition_by: str | Sequence[str] | None = None,
    ordering: str | None = None,
    name: str | None = None,
    table_version: int | None = None,
    hive_style: bool = False,
    url_encode: bool = False,
    merge_mode: str | None = None,
    global_index: bool = False,
    table_type: str = "copy_on_write",
) -> TableConfig:
    """Return the definition of a new table with the arguments of `Table.create`, or raise."""
    given = arrow_schema_of(schema)
    keys = names_of(record_key)
    stored = storable(given)
    mode = merge_mode_of(merge_mode, ordering)
    check_supported(table_type=table_type)
    merge_on_read = table_type == "merge_on_read"
    refuse_not_null(given, keys[0] if len(keys) == 1 else None)
    config = TableConfig(
        name=name or table_name(path),
        record_key=keys,
        partition_by=names_of(partition_by),
        ordering=ordering,
        hive_style=hive_style,
        url_encode=url_encode,
        merge_mode=mode,
        global_keys=bool(global_index) and bool(names_of(partition_by)),
        schema=stored,
        version=version_of(table_version, mode, merge_on_read=merge_on_read),
        merge_on_read=merge_on_read,
    )
    if merge_on_read and (config.not_appended or MODES[mode].custom):
        reason = config.not_appended or f"with merge_mode={mode!r}"
        raise InvalidConfig(
            f"table_type='merge_on_read': no log files are written to a table {reason}; use "
            "table_version=9 or 8, an ordering column of integers or none, and no global keys"
        )
    check_columns(config)
    return config


def names_of(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return column names as a tuple, given one, several or none."""
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def table_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a table from the name of its folder."""
    base = folder_name(path)
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in base) or "table"


def merge_mode_of(given: str | None, ordering: str | None) -> str:
    """Return the given merge mode, or the default, which depends on the ordering column."""
    mode = given or ("event_time" if ordering else "commit_time")
    if mode not in MODES:
        raise InvalidConfig(f"merge_mode={given!r}: choose from {list(MODES)}")
    if MODES[mode].needs_ordering and ordering is None:
        raise InvalidConfig(f"merge_mode={mode!r} needs an ordering column: set ordering=")
    return mode


def check_columns(config: TableConfig) -> None:
    """Raise InvalidConfig or InvalidInput for columns that cannot be keys or order rows.

    Raises InvalidConfig for a table name that readers of `hoodie.properties` would change.
    """
    if config.name != config.name.strip() or not config.name.isprintable():
        raise InvalidConfig(
            f"table name {config.name!a} begins or ends with a space, or has a character that "
            "cannot be printed: choose another name"
        )
    if not config.record_key:
        raise InvalidConfig("record_key is empty: name the column(s) that identify a row")
    if config.keygen == "COMPLEX" and len(config.record_key) == 1:
        raise InvalidConfig(
            "one key column with several partition columns is not supported: Hudi's versions "
            "disagree about the key's text (HUDI-7001); add a second key column or partition by one"
        )
    if config.global_keys and not MODES[config.merge_mode].for_global_keys:
        others = [name for name, mode in MODES.items() if mode.for_global_keys]
        raise InvalidConfig(
            f"global_index=True with merge_mode={config.merge_mode!r} is not supported: choose "
            f"from {others}"
        )
    check_key_types(config, config.schema)
    if config.ordering is not None:
        objection = ordering_objection(config.ordering, config.schema)
        if objection:
            raise InvalidConfig(f"{objection}: choose another column")


def check_global(table: TableHandle, operation: str) -> None:
    """Raise InvalidConfig for a write that cannot keep each key in one partition of the table."""
    if operation == OVERWRITES["partitions"]:
        what = "insert_overwrite of partitions"
        refuse_global(table.config, what, 'use scope="table", or upsert')
    if operation == "bulk_insert" and any(table.file_groups().unordered()):
        what = "bulk_insert into a table with rows"
        refuse_global(table.config, what, "use insert, which looks keys up, or upsert")


def version_of(table_version: int | None, merge_mode: str, *, merge_on_read: bool) -> str:
    """Return the version of a new table, or raise InvalidConfig."""
    if table_version is None:
        table_version = 9 if merge_on_read else 6
    if table_version not in (6, 8, 9):
        raise InvalidConfig(f"table_version={table_version!r}: choose 6, 8 or 9")
    if table_version != 6 and MODES[merge_mode].custom:
        raise InvalidConfig(
            f"merge_mode={merge_mode!r} needs table_version=6: Hudi defines it there"
        )
    return str(table_version)


def arrow_schema_of(schema: Columns | StructType | str) -> pa.Schema:
    """Return a schema given as pyarrow's, as a dict of its types, as Spark's or as DDL text."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, Mapping):
        return _of_types(schema)
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    given = _of_ddl(schema) if isinstance(schema, str) else schema
    if not isinstance(given, StructType):
        kind = type(given).__name__
        raise InvalidConfig(
            f"schema is a {kind}: give a pyarrow.Schema, a dict of types, a StructType or DDL text"
        )
    try:
        return to_arrow_schema(given, timezone="UTC")
    except PySparkException as error:
        raise InvalidInput(f"the schema has a column that cannot be stored: {error}") from None


def _of_types(types: Mapping[str, pa.DataType]) -> pa.Schema:
    try:
        return pa.schema(list(types.items()))
    except (TypeError, ValueError) as error:
        raise InvalidConfig(
            f"schema={types!r:.200}: the values must be pyarrow types ({error})"
        ) from None


def _of_ddl(text: str) -> DataType:
    """Return the columns in DDL text, which only a running Spark session can parse."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if SparkContext._active_spark_context is None:
        raise InvalidConfig(
            "a schema as DDL text needs a running Spark session: call hn.spark() first, or give "
            "a pyarrow.Schema"
        )
    try:
        return StructType.fromDDL(text)
    except PySparkException as error:
        line = str(error).strip().splitlines()[0][:200]
        raise InvalidConfig(f"schema={text!r}: write DDL as 'id string, v int' ({line})") from None
