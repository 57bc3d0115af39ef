"""The format's class that Spark calls first: schema, readers, writers; opens or creates the table.

| option | of | meaning |
| --- | --- | --- |
| `path` | all | the table's folder; `load`, `save` and `start` set it |
| `as_of` | a read | the snapshot as of a moment |
| `hoodie.datasource.query.type` | a read | `read_optimized`: the newest base files; or `snapshot` |
| `since`, `until` | a read | the changes between two moments, with `_change` |
| `starting` | a stream | `"earliest"`: all rows first, as inserts; `"latest"`; or a moment |
| `hoodie...` | a write | Hudi's own: see `hudi_options` and docs/hudi-options.md |
| `wait` | a write | how long to wait for another process that writes the table |
| `schema` | a write | `"merge"`: the table gets the new columns of the rows, and wider types |
| any other | all | if the table is on an object store: one of its `storage_options` |

**Caveats**: Spark asks for the columns without saying whether it reads a stream, so only with
`starting` are they those of changes; a stream without it is refused. To sources in Python Spark
passes no options of a catalog's tables, not even their path. *Source:* pyspark.sql.datasource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import datasource as spark_api
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from hoodie_nb.definition import property_file
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.evidence.handle import TableHandle, create_table, open_table
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lock.lock import writing
from hoodie_nb.on_spark.sources import ChangesReader, ChangeStream, SnapshotReader
from hoodie_nb.reading.changes import changes_schema
from hoodie_nb.spark_format.hudi_options import NO_CATALOG, SinkOptions, parse
from hoodie_nb.spark_format.sink import BatchSink, arrow_columns, opened
from hoodie_nb.spark_format.stream_sink import StreamSink
from hoodie_nb.storage.addresses import storage_at
from hoodie_nb.storage.storage import Storage, is_remote
from hoodie_nb.types.schema import IS_DELETED

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "hoodie_nb"
_READ = {"as_of"}
_CHANGES = {"since", "until"}
_STREAM = {"starting"}
_QUERY = "hoodie.datasource.query.type"
_OWN = {"path", _QUERY} | _READ | _CHANGES | _STREAM


class HudiSource(spark_api.DataSource):
    """What Spark asks first: the columns, the reader, the writer."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a snapshot, or of changes."""
        given = {key.lower() for key in self.options} - {*self._store_options()}
        wrong = given - _OWN
        kinds = [kind & given for kind in (_READ, _CHANGES, _STREAM) if kind & given]
        if given >= {"owner", "provider"}:  # of a table of a catalog
            raise InvalidConfig(NO_CATALOG)
        if wrong or len(kinds) > 1 or "path" not in given or kinds == [{"until"}]:
            raise InvalidConfig(
                f"options {sorted(given)} of format {NAME!r}: give a path, and at most one of "
                "`as_of`, `since` (with or without `until`), or `starting` (of a stream)"
            )
        is_changes = kinds and kinds[0] != _READ
        if is_changes and self._read_optimized():
            raise InvalidConfig(f"option {_QUERY}: changes are never read so: leave it out")
        table = self._table()
        columns = changes_schema(table) if is_changes else stored_schema(table.schema)
        return from_arrow_schema(columns, True)

    def reader(self, schema: StructType) -> spark_api.DataSourceReader:
        """Return the reader of a snapshot, or of the changes between two moments."""
        if "starting" in self.options:
            raise InvalidConfig("option `starting` is for spark.readStream; a read has `since`")
        columns = self._columns(schema)
        if "since" in self.options:
            since = self.options["since"]
            until = self.options.get("until")
            return ChangesReader(self._storage(), columns, since, until)
        as_of = self.options.get("as_of")
        optimized = self._read_optimized()
        return SnapshotReader(self._storage(), columns, as_of, read_optimized=optimized)

    def streamReader(self, schema: StructType) -> ChangeStream:
        """Return the reader of a stream of changes."""
        starting = self.options.get("starting")
        return ChangeStream(self._storage(), self._columns(schema), starting)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Return the writer of a batch; a table that does not exist is created."""
        options = parse(self.options, overwrite=overwrite)
        given = arrow_columns(schema)
        return BatchSink(_opened_or_created(options, given), given, options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """Return the writer of a micro-batch; a table that does not exist is created."""
        options = parse(self.options, overwrite=overwrite, stream=True)
        given = arrow_columns(schema)
        return StreamSink(_opened_or_created(options, given), given, options)

    def _read_optimized(self) -> bool:
        kind = self.options.get(_QUERY, "snapshot").lower()
        if kind not in ("snapshot", "read_optimized"):
            raise InvalidConfig(
                f"option {_QUERY}={kind!r}: choose 'snapshot' or 'read_optimized'; option "
                "`since` reads changes"
            )
        return kind == "read_optimized"

    def _storage(self) -> Storage:
        if "path" not in self.options:
            raise InvalidConfig(f"Spark gave no path: read with load(path). {NO_CATALOG}")
        return storage_at(self.options["path"], self._store_options())

    def _store_options(self) -> dict[str, str]:
        """Return the options that are not ours, for the store's client, which knows all of its."""
        path = self.options.get("path", "")
        given = {k.lower(): v for k, v in self.options.items()}
        on_store = is_remote(path) and not path.startswith("file:")
        return {name: value for name, value in given.items() if on_store and name not in _OWN}

    def _table(self) -> TableHandle:
        table = open_table(self._storage())
        table.reload()
        return table

    def _columns(self, schema: StructType) -> pa.Schema:
        """Return the columns in Arrow, or raise InvalidConfig if the user named others."""
        table = self._table()
        known = {*stored_schema(table.schema).names, "_change"}
        other = [name for name in schema.names if name not in known]
        if other:
            raise InvalidConfig(f"columns {other} are not in the table; it has {sorted(known)}")
        return to_arrow_schema(schema, timezone="UTC")


def _opened_or_created(options: SinkOptions, given: pa.Schema) -> TableHandle:
    """Return the table that the options describe, or raise InvalidConfig if it is another one."""
    storage = storage_at(options.path, options.storage_options)
    exists = storage.entry(property_file.PATH) or storage.entry(property_file.BACKUP)
    if not exists and options.operation != "delete":
        _create(storage, options, given)
    table = opened(storage, options)
    options.refuse_others(table.config)
    table.reload()
    return table


def _create(storage: Storage, options: SinkOptions, given: pa.Schema) -> None:
    """Create the table once its definition agrees with all options, and the columns with it."""
    from hoodie_nb.api.definition import defined

    plain = pa.schema([field for field in given if field.name != IS_DELETED])
    config = defined(options.path, schema=plain, **options.arguments())
    options.refuse_others(config)
    Intake(config, config.schema, options.operation).check(given)
    create_table(storage, config, options=options.options, holding=writing)
