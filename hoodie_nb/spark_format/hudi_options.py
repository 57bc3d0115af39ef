"""Options and save mode of `df.write`: which operation they mean; which are ignored or refused.

docs/hudi-options.md lists them. An option that this library cannot honour is refused with the
reason: ignored, it would change what the user gets without a word.

*Source:* DataSourceOptions, HoodieWriteConfig, HoodieTableConfig of Hudi.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hoodie_nb.api.definition import check_supported
from hoodie_nb.clock import wait_seconds
from hoodie_nb.config import WriteOptions, flag
from hoodie_nb.definition.properties import TableConfig, generator_of
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.storage.storage import is_remote
from hoodie_nb.timeline.commits import OVERWRITES
from hoodie_nb.types.merge_modes import MODES

Argument = tuple[str, Callable[[str, str], object]]  # of `Table.create`, and how it is read
_WRITE = "hoodie.datasource.write."
OPERATION = f"{_WRITE}operation"
OPERATIONS = ("upsert", "insert", "bulk_insert", "delete", *OVERWRITES.values())
STREAMED = ("upsert", "insert", "delete")
SPARKS_OWN = ("path", "checkpointlocation", "wait", "schema")  # the last two are ours
NO_CATALOG = (
    "A table of a catalog (CREATE TABLE, saveAsTable, writeTo) cannot have the format hoodie_nb: "
    "Spark passes its path and options to no source in Python. DROP TABLE it if it is there. Make "
    "the table by hn.Table.create(path, ...) or df.write.format('hoodie_nb').mode('append')."
    "save(path), for SQL with CREATE TEMP VIEW name USING hoodie_nb OPTIONS (path '...')"
)


def _names(value: str, name: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if any(":" in part or "." in part for part in found):
        raise InvalidConfig(f"{name}={value!r}: give names of columns, separated by commas")
    return found


def _one(value: str, name: str) -> str | None:
    found = _names(value, name)
    if len(found) > 1:
        raise InvalidConfig(f"{name}={value!r}: only one ordering column is supported")
    return found[0] if found else None


def _version(value: str, name: str) -> int:
    if value not in ("6", "8", "9"):
        raise InvalidConfig(f"{name}={value!r}: choose 6, 8 or 9")
    return int(value)


def _type(value: str, name: str) -> str:
    if value.upper() not in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        raise InvalidConfig(f"{name}={value!r}: choose COPY_ON_WRITE or MERGE_ON_READ")
    return value.lower()


def _merge_mode(value: str, name: str) -> str:
    mode = value.lower().removesuffix("_ordering")
    if mode not in MODES or MODES[mode].custom:
        raise InvalidConfig(f"{name}={value!r}: choose EVENT_TIME_ORDERING or COMMIT_TIME_ORDERING")
    return mode


def _payload(value: str, name: str) -> str:
    short = value.rpartition(".")[2]
    for mode, known in MODES.items():
        if short in known.payloads:
            return mode
    choices = [payload for known in MODES.values() for payload in known.payloads]
    raise InvalidConfig(f"{name}={value!r} is not supported: choose from {choices}")


def _global(value: str, name: str) -> bool:
    kind = value.upper()
    if kind.removeprefix("GLOBAL_") not in ("BLOOM", "SIMPLE"):
        raise InvalidConfig(
            f"{name}={value!r} is not supported: this library has an index of its own, which "
            "BLOOM and SIMPLE stand for; GLOBAL_BLOOM and GLOBAL_SIMPLE make a key unique in the "
            "whole table. Leave the option out"
        )
    return kind.startswith("GLOBAL_")


def _keygen(value: str, name: str) -> str:
    kind = generator_of(value)
    if kind not in ("SIMPLE", "COMPLEX", "NON_PARTITION"):
        raise InvalidConfig(
            f"{name}={value!r} is not supported: keys and partitions are made from columns as "
            "they are; compute a column in the DataFrame, and leave the option out"
        )
    return kind


ARGUMENTS: dict[str, Argument] = {
    f"{_WRITE}recordkey.field": ("record_key", _names),
    "hoodie.table.recordkey.fields": ("record_key", _names),
    f"{_WRITE}partitionpath.field": ("partition_by", _names),
    "hoodie.table.partition.fields": ("partition_by", _names),
    f"{_WRITE}precombine.field": ("ordering", _one),
    "hoodie.table.precombine.field": ("ordering", _one),
    "hoodie.table.ordering.fields": ("ordering", _one),
    "hoodie.table.name": ("name", lambda value, _: value),
    f"{_WRITE}table.name": ("name", lambda value, _: value),
    "hoodie.table.type": ("table_type", _type),
    f"{_WRITE}table.type": ("table_type", _type),
    f"{_WRITE}storage.type": ("table_type", _type),
    "hoodie.table.version": ("table_version", _version),
    "hoodie.write.table.version": ("table_version", _version),
    f"{_WRITE}hive_style_partitioning": ("hive_style", flag),
    f"{_WRITE}partitionpath.urlencode": ("url_encode", flag),
    "hoodie.record.merge.mode": ("merge_mode", _merge_mode),
    "hoodie.write.record.merge.mode": ("merge_mode", _merge_mode),
    f"{_WRITE}payload.class": ("merge_mode", _payload),
    "hoodie.compaction.payload.class": ("merge_mode", _payload),
    "hoodie.index.type": ("global_index", _global),
    f"{_WRITE}keygenerator.class": ("keygen", _keygen),
    f"{_WRITE}keygenerator.type": ("keygen", _keygen),
    "hoodie.table.keygenerator.class": ("keygen", _keygen),
    "hoodie.table.keygenerator.type": ("keygen", _keygen),
}
WITHOUT_EFFECT = (
    f"{_WRITE}row.writer.enable",
    "hoodie.bulkinsert.shuffle.parallelism",
    "hoodie.delete.shuffle.parallelism",
    "hoodie.insert.shuffle.parallelism",
    "hoodie.upsert.shuffle.parallelism",
)
_NO_SYNC = "tables are not registered in a catalog: register the folder with its own tools"
_LOGS_ARE_MERGED = "writes merge logs by themselves when they are due; `compact` merges all of them"
_OWN_CALL = "clustering is a service of its own (`cluster`), not a part of a write"
_NO_METADATA = "this library writes no metadata table"
_ONE_WRITER = "the table's own lock lets one process write at a time; `wait` waits for another one"
FIXED = {  # the only value, and the reason
    "hoodie.table.base.file.format": ("parquet", "rows are stored in Parquet files"),
    "hoodie.populate.meta.fields": ("true", "the meta columns are always stored"),
    "hoodie.metadata.enable": ("false", _NO_METADATA),
    "hoodie.combine.before.upsert": ("true", "one row of each key is stored"),
    "hoodie.combine.before.insert": ("false", "`insert` keeps all rows; use upsert"),
    f"{_WRITE}insert.drop.duplicates": ("false", "use upsert"),
    f"{_WRITE}reconcile.schema": ("false", "add the missing columns to the DataFrame"),
    f"{_WRITE}drop.partition.columns": ("false", "the partition columns are always stored"),
    f"{_WRITE}auto.upgrade": ("false", "a table keeps its version"),
    "hoodie.write.auto.upgrade": ("false", "a table keeps its version"),
    "hoodie.datasource.hive_sync.enable": ("false", _NO_SYNC),
    "hoodie.datasource.meta.sync.enable": ("false", _NO_SYNC),
    "hoodie.compact.inline": ("false", _LOGS_ARE_MERGED),
    "hoodie.clustering.inline": ("false", _OWN_CALL),
    "hoodie.clustering.async.enabled": ("false", _OWN_CALL),
    "hoodie.write.concurrency.mode": ("single_writer", _ONE_WRITER),
}
REFUSED = {  # all options that begin so
    "hoodie.datasource.hive_sync.": _NO_SYNC,
    "hoodie.datasource.meta_sync.": _NO_SYNC,
    "hoodie.meta.sync.": _NO_SYNC,
    "hoodie.metadata.": _NO_METADATA,
    "hoodie.write.lock.": _ONE_WRITER,
    "hoodie.compact.": _LOGS_ARE_MERGED,
    "hoodie.clustering.": _OWN_CALL,
    "hoodie.bucket.index.": "this library has an index of its own",
    "hoodie.bootstrap.": "write the rows with operation bulk_insert",
    f"{_WRITE}streaming.": "Spark runs a failed batch again when the query is started again",
    "hoodie.datasource.read.": "a write has no such option; a read has `since` and `until`",
    "hoodie.datasource.query.": "a write has no such option; a read has `as_of` and `since`",
}


_OWN = {field.metadata["name"]: field.metadata["check"] for field in fields(WriteOptions)}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write.

    `definition` has the arguments of `Table.create` that were given, and by which option; `options`
    those of `hoodie_nb.config`; `wait` is how long to wait for another writer, `checkpoint` the
    folder of a stream; `merges`: the table gets the new columns of the rows, and their wider types.
    """

    path: str
    operation: str
    definition: Mapping[str, tuple[str, object]]
    options: Mapping[str, str]
    storage_options: Mapping[str, str] = field(repr=False)  # they may have credentials
    wait: str | None = None
    checkpoint: str | None = None
    merges: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `Table.create`, or raise InvalidConfig without a record key."""
        given = {name: value for name, (_, value) in self.definition.items()}
        if not given.get("record_key"):
            raise InvalidConfig(
                f"there is no table at {self.path}: to create one, give the record key, as "
                f".option('{_WRITE}recordkey.field', 'id'); with hn.Table.create it can also be "
                "defined before"
            )
        return {name: given[name] for name in given if name != "keygen"}

    def refuse_others(self, config: TableConfig) -> None:
        """Raise InvalidConfig if options say other than the table's own definition."""
        renamed: dict[str, object] = {
            "table_type": "merge_on_read" if config.merge_on_read else "copy_on_write",
            "table_version": int(config.version),
            "global_index": config.global_keys,
        }
        refused: list[str] = []
        for argument, (option, value) in self.definition.items():
            known = renamed[argument] if argument in renamed else getattr(config, argument)
            if value != known and not _says_nothing(argument, value, config):
                cure = "leave the option out"
                if argument == "global_index" and value:
                    cure = "without it, a key that moves to another partition is there twice"
                refused.append(
                    f"option {option} says {_shown(value)}, but the table at {self.path} has "
                    f"{_shown(known)}: {cure}, or write to another path"
                )
        _refuse(refused)


def _says_nothing(argument: str, value: object, config: TableConfig) -> bool:
    """Whether a value means the same for this table: without partitions all keys are global."""
    return argument == "global_index" and value is True and not config.partition_by


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def parse(
    given: Mapping[str, str], *, overwrite: bool = False, stream: bool = False
) -> SinkOptions:
    """Return the options of a write, or raise InvalidConfig that names each refused option.

    `overwrite`: of mode("overwrite"), or of a stream with outputMode("complete").
    """
    named = {name.lower(): value for name, value in given.items()}
    path = named.get("path", "")
    if not path:
        raise InvalidConfig(
            f"Spark gave no path: write with save(path) or start(path). {NO_CATALOG}"
        )
    definition = dict[str, tuple[str, object]]()
    options = dict[str, str]()
    store = dict[str, str]()
    refused: list[str] = []
    for name, value in named.items():
        try:
            if name in ARGUMENTS:
                _define(definition, name, value)
            elif name in _OWN:
                _OWN[name](value, name)
                options[name] = value
            elif name in FIXED:
                _check_fixed(name, value)
            elif name == OPERATION or name in SPARKS_OWN or name in WITHOUT_EFFECT:
                continue
            elif is_remote(path) and not path.startswith("file:") and not name.startswith("hoodie"):
                store[name] = value
            else:
                refused.append(_unknown(name))
        except InvalidConfig as error:
            refused.append(str(error))
    _refuse(refused)
    WriteOptions().updated(options)
    operation = _operation(named.get(OPERATION), overwrite, stream)
    own = (named.get("wait"), named.get("checkpointlocation"))
    wait_seconds(own[0])  # refused here if it is no duration
    if stream and not own[1]:
        raise InvalidConfig(
            "Spark passes the checkpoint folder only if the query names it: add "
            ".option('checkpointLocation', folder), also if the session has a default"
        )
    merges = _merges(named.get("schema", "fixed"), operation)
    return SinkOptions(path, operation, definition, options, store, *own, merges)


def _refuse(refused: Sequence[str]) -> None:
    """Raise InvalidConfig with all these reasons, a line each."""
    if refused:
        several = [f"{len(refused)} options are refused:"] if len(refused) > 1 else []
        raise InvalidConfig("\n- ".join([*several, *refused]))


def _merges(value: str, operation: str) -> bool:
    check_supported(schema=value)
    if value == "merge" and operation == "delete":
        raise InvalidConfig("schema='merge' is for rows that are stored: leave it out")
    return value == "merge"


def _define(definition: dict[str, tuple[str, object]], name: str, text: str) -> None:
    argument, parsed = ARGUMENTS[name]
    value = parsed(text, name)
    other, before = definition.setdefault(argument, (name, value))
    if before != value:
        raise InvalidConfig(
            f"options {other} and {name} mean the same, but differ ({_shown(before)} and "
            f"{_shown(value)}): give one of them"
        )


def _check_fixed(name: str, value: str) -> None:
    only, why = FIXED[name]
    if value.lower() != only:
        raise InvalidConfig(f"option {name}={value} is not supported: {why}. Set it to {only}")


def _unknown(name: str) -> str:
    for prefix, why in REFUSED.items():
        if name.startswith(prefix):
            return f"option {name} is not supported: {why}. Leave it out"
    near = [option for option, its in ARGUMENTS.items() if its[0] == name]
    near += difflib.get_close_matches(name, [*all_names()], 1, cutoff=0.8)
    hint = f"did you mean {near[0]}?" if near else "docs/hudi-options.md lists the options"
    return f"option {name} is unknown: {hint}"


def all_names() -> Iterator[str]:
    """Yield the name of each option that is accepted, with some value."""
    yield from ARGUMENTS
    yield from _OWN
    yield from FIXED
    yield from WITHOUT_EFFECT
    yield from (OPERATION, "wait", "schema")


def _operation(given: str | None, overwrite: bool, stream: bool) -> str:
    operation = (given or "upsert").lower()
    if operation not in OPERATIONS:
        raise InvalidConfig(f"{OPERATION}={given!r}: choose from {list(OPERATIONS)}")
    if stream:
        return _streamed(operation, overwrite)
    if not overwrite:
        return operation
    if operation in ("delete", OVERWRITES["partitions"]):
        raise InvalidConfig(
            f"{OPERATION}={given} with mode('overwrite'): that mode replaces all rows of the "
            "table. Use mode('append')"
        )
    return OVERWRITES["table"]


def _streamed(operation: str, overwrite: bool) -> str:
    if overwrite:
        raise InvalidConfig(
            "outputMode('complete') is not supported: with hn.write_stream(..., "
            "output_mode='update') the table gets the groups that each batch has changed"
        )
    if operation not in STREAMED:
        raise InvalidConfig(
            f"{OPERATION}={operation} is not possible in a stream: choose from {list(STREAMED)}"
        )
    return operation
