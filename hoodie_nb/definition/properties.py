"""`hoodie.properties`, the meaning: parsed, and which table versions and types are supported.

*On disk*: a Java properties file `.hoodie/hoodie.properties`. The checksum is the CRC-32 of
`<database>.<table>`. `hoodie.table.ordering.fields` (Hudi 1.x) and `hoodie.table.precombine.field`
(0.x) mean the same. This library's own options are in `.hoodie/.hoodie_nb/options.json`, a record
with its checksum, so the properties have nothing that Hudi does not know.

**Caveats**: table versions 6, 8 and 9; one ordering column; composite keys need Hudi's COMPLEX
form; times in partition paths: see `time_partitions`. A table with other keys or another merge mode
can be read but not written. A merge-on-read table is read only if its rows are merged by event time
or commit time, since readers merge its log files; one of another engine, of version 6, with global
keys or another ordering column than integers is not written. *Source:* HoodieTableConfig.
"""

import contextlib
import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from hoodie_nb.config import WriteOptions
from hoodie_nb.definition.property_file import checksum, parse_properties, read_text
from hoodie_nb.errors import InvalidConfig, InvalidTable, readable
from hoodie_nb.storage.checksums import decode_record
from hoodie_nb.storage.storage import META, Storage, read_bytes
from hoodie_nb.timeline.instant import LAYOUT_1, LAYOUT_2, Layout
from hoodie_nb.types import merge_modes
from hoodie_nb.types.avro_schema import parse_avro
from hoodie_nb.types.time_partitions import PREFIX, TimePartition, Unclear

OPTIONS = f"{META}/.hoodie_nb/options.json"
KEYGEN = "org.apache.hudi.keygen."
INDEX = "hoodie.index.type"  # not read by Hudi's readers; its Spark writer takes it as an option
_LOGS = "MERGE_ON_READ"
_READ = {  # allowed values for reading the table like its own engine
    "hoodie.table.type": ("COPY_ON_WRITE", _LOGS),
    "hoodie.table.base.file.format": ("PARQUET",),
    "hoodie.timeline.path": ("timeline",),
    "hoodie.table.format": ("native",),
    "hoodie.table.multiple.base.file.formats.enable": ("false",),
    "hoodie.populate.meta.fields": ("true",),
    "hoodie.datasource.write.drop.partition.columns": ("false",),
    "hoodie.bootstrap.base.path": (),
}
_WRITTEN = {  # allowed values for writing it
    "hoodie.table.cdc.enabled": ("false",),
    "hoodie.table.partial.update.mode": (),
    INDEX: ("BLOOM", "GLOBAL_BLOOM", "SIMPLE", "GLOBAL_SIMPLE", "INMEMORY"),
    "hoodie.datasource.write.slash.separated.date.partitioning": ("false",),
    **merge_modes.WRITTEN,
}
_MERGED = {  # allowed values for merging its log files
    "hoodie.table.log.file.format": ("HOODIE_LOG",),
    "hoodie.table.partial.update.mode": (),
    "hoodie.payload.delete.field": (),
    **merge_modes.WRITTEN,
}
_METADATA = ("hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight")
_LAYOUTS = {"6": LAYOUT_1, "8": LAYOUT_2, "9": LAYOUT_2}  # by table version
_ARCHIVES = {1: "hoodie.archivelog.folder", 2: "hoodie.timeline.history.path"}  # by layout
_OTHER_LAYOUT = ("hoodie.bucket.index.", "hoodie.keygen.")  # any property below them


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A table's definition: names, key, partitioning, ordering, and the initial schema."""

    name: str
    record_key: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    ordering: str | None = None
    hive_style: bool = False
    url_encode: bool = False
    merge_mode: str = "commit_time"
    global_keys: bool = False  # a key is in one partition of the table, not of each
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    metadata_partitions: str = ""
    version: str = "6"
    archive: str = field(default="", compare=False)  # the name of its folder; empty: Hudi's default
    local_time: bool = False  # instants are in the zone of the machine, not in UTC
    times: TimePartition | None = None  # partition paths are made of times
    merge_on_read: bool = False
    unwritable: str = ""  # the reason if a write would damage the table

    @property
    def refusal(self) -> str:
        """Return why this library does not write the table; empty if it does."""
        reason = self.not_appended if self.merge_on_read else ""
        if reason:
            return (
                f"{self.name} is a merge-on-read table {reason}, which can only be read here "
                "(to_arrow, to_pandas, to_spark): write it with the engine that created it"
            )
        return self.unwritable

    @property
    def not_appended(self) -> str:
        """Return why this library writes no log files to such a table; empty if it does."""
        if self.version == "6":
            return "of version 6"
        if self.global_keys:
            return "with global keys"
        if "_hoodie_operation" in self.schema.names:
            return "with a column _hoodie_operation, which deletes rows in log files"
        ordered = self.merge_mode == "event_time" and self.ordering in self.schema.names
        kind = self.schema.field(self.ordering).type if ordered else pa.int64()
        if kind not in (pa.int32(), pa.int64()):
            return f"with {self.ordering!r}, of type {kind}, as the ordering column"
        return ""

    @property
    def layout(self) -> Layout:
        """Return the layout of the table's timeline."""
        layout = _LAYOUTS[self.version]
        archive = f"{layout.folder}/{self.archive}" if self.archive else layout.archive
        return replace(layout, archive=archive)

    @property
    def keygen(self) -> str:
        """Return Hudi's key generator: NON_PARTITION, SIMPLE, TIMESTAMP or COMPLEX."""
        if not self.partition_by:
            return "NON_PARTITION"
        single = len(self.record_key) == 1 and len(self.partition_by) == 1
        return ("SIMPLE" if self.times is None else "TIMESTAMP") if single else "COMPLEX"

    @property
    def levels(self) -> int:
        """Return how many folders a partition path has."""
        made = self.times is not None and not self.url_encode
        return self.times.levels if self.times and made else len(self.partition_by)

    @property
    def composite_key(self) -> bool:
        """Whether record keys are written as `name:value,name:value`."""
        return self.keygen == "COMPLEX" or len(self.record_key) > 1

    @classmethod
    def parse(cls, text: str, where: str) -> "TableConfig":
        """Return the configuration in a properties file, or raise InvalidTable."""
        values = parse_properties(text)
        _check(values, where)
        config = cls._of(values, where)
        if config.merge_on_read:
            _check_merge(values, config, where)
        reason = _unsupported(values, _WRITTEN)
        reason = reason or _other_keys(values, config)
        reason = reason or _other_clock(values) or _other_merger(values, config)
        why = f"{where} {reason}: write it with the engine that created it" if reason else ""
        if not values.get("hoodie.table.checksum"):  # every engine ends the file with it
            why = (
                f"{where} has no hoodie.table.checksum: other lines may be lost too; "
                "restore it from a backup"
            )
        return replace(config, unwritable=why)

    @classmethod
    def _of(cls, values: dict[str, str], where: str) -> "TableConfig":
        names = ("hoodie.table.ordering.fields", "hoodie.table.precombine.field")
        ordering = next(filter(None, map(values.get, names)), None)
        avro = values.get("hoodie.table.create.schema")
        version = values["hoodie.table.version"]
        return cls(
            name=values["hoodie.table.name"],
            record_key=_split(values.get("hoodie.table.recordkey.fields", "")),
            partition_by=_split(values.get("hoodie.table.partition.fields", "")),
            ordering=ordering,
            hive_style=_true(values, "hoodie.datasource.write.hive_style_partitioning"),
            url_encode=_true(values, "hoodie.datasource.write.partitionpath.urlencode"),
            merge_mode=merge_modes.mode_of(values, ordering),
            global_keys=_global(values),
            schema=parse_avro(avro, where) if avro else pa.schema([]),
            metadata_partitions=",".join(filter(None, map(values.get, _METADATA))),
            version=version,
            local_time=_zone(values) != "UTC",
            times=_times(values),
            merge_on_read=values.get("hoodie.table.type") == _LOGS,
            archive=values.get(_ARCHIVES[_LAYOUTS[version].number], "").strip("/"),
        )


def _check_merge(values: dict[str, str], config: TableConfig, where: str) -> None:
    """Raise InvalidTable if log files are merged by a rule that is not supported."""
    reason = _unsupported(values, _MERGED) or merge_modes.other_rule(values, config.merge_mode)
    if reason is None and merge_modes.MODES[config.merge_mode].custom:
        reason = f"has merge mode {config.merge_mode!r}"
    if reason:
        raise InvalidTable(
            f"{where} {reason}: log files of a merge-on-read table are merged as they are read, "
            "here by event time or commit time; read it with the engine that created it"
        )


def _other_merger(values: dict[str, str], config: TableConfig) -> str | None:
    """Return why the table's merge rule is not supported; None if it is."""
    if config.global_keys and not merge_modes.MODES[config.merge_mode].for_global_keys:
        return f"has {INDEX}={values[INDEX]} with merge mode {config.merge_mode}"
    return merge_modes.other_rule(values, config.merge_mode)


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.split(":")[0] for name in names.split(",") if name)


def _global(values: dict[str, str]) -> bool:
    """Whether keys are unique in the whole table; without partitions they always are."""
    kind = values.get(INDEX, "")
    return kind.startswith("GLOBAL_") and bool(values.get("hoodie.table.partition.fields"))


def _times(values: dict[str, str]) -> TimePartition | None:
    with contextlib.suppress(Unclear):  # such a table is not written
        return TimePartition.of(values)
    return None


def _true(values: dict[str, str], name: str) -> bool:
    return values.get(name, "false").lower() == "true"


def _check(values: dict[str, str], where: str) -> None:
    name = values.get("hoodie.table.name")
    if not name:
        raise InvalidTable(f"{where} has no hoodie.table.name: restore it from a backup")
    version = values.get("hoodie.table.version", "")
    if version not in _LAYOUTS:
        raise InvalidTable(
            f"{where} has table version {version or '(none)'}; this library reads versions "
            "6, 8 and 9: upgrade the table with Hudi's own writer"
        )
    number = {"hoodie.timeline.layout.version": (str(_LAYOUTS[version].number),)}
    reason = _unsupported(values, {**_READ, **number})
    if reason:
        raise InvalidTable(f"{where} {reason}: read it with the engine that created it")
    if values.get("hoodie.table.checksum") not in (None, "", checksum(values)):
        raise InvalidTable(f"{where}: the checksum does not match: restore it from a backup")
    if len(_split(values.get("hoodie.table.ordering.fields", ""))) > 1:
        raise InvalidTable(f"{where} names several ordering columns; only one is supported")


def _unsupported(values: dict[str, str], supported: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the first unsupported property; None if there is none."""
    for key, allowed in supported.items():
        if values.get(key) and values[key] not in allowed:
            return f"has {key}={values[key]}; supported: {' or '.join(allowed) or 'none'}"
    return None


def _other_keys(values: dict[str, str], config: TableConfig) -> str | None:
    """Return why the table's own record keys may have a different text than ours."""
    if not config.record_key:
        return "names no hoodie.table.recordkey.fields: its keys are generated"
    try:
        TimePartition.of(values)
    except Unclear as error:
        return f"{error}: this layout of rows is unknown or not supported"
    other = [k for k in values if k.startswith(_OTHER_LAYOUT) and not k.startswith(PREFIX)]
    if other:
        return f"has {other[0]}={values[other[0]]}: its rows are laid out differently"
    generator = values.get("hoodie.table.keygenerator.class", "")
    of_class = generator_of(generator)
    kind = values.get("hoodie.table.keygenerator.type", "").removesuffix("_AVRO")
    if config.times is not None and (kind or of_class) != "TIMESTAMP":
        return f"has {PREFIX}output.dateformat and another key generator ({kind or generator})"
    if kind and kind != config.keygen:
        return f"has hoodie.table.keygenerator.type={kind}; supported: {config.keygen}"
    if of_class and of_class != config.keygen and (not kind or generator.startswith(KEYGEN)):
        return f"has hoodie.table.keygenerator.class={generator}; supported: {config.keygen}"
    if config.keygen == "COMPLEX" and len(config.record_key) == 1:
        return "has hoodie.table.keygenerator.type=COMPLEX for one key column (HUDI-7001)"
    return None


def generator_of(name: str) -> str:
    """Return Hudi's key generator as `TableConfig.keygen` does, given its class."""
    short = name.removeprefix(KEYGEN).removesuffix("KeyGenerator").removesuffix("Avro")
    short = short.removesuffix("Based").upper()
    return {"NONPARTITIONED": "NON_PARTITION"}.get(short, short)


def _other_clock(values: dict[str, str]) -> str | None:
    """Return why our instants, in UTC, could be older than the table's; None if they cannot."""
    zone = _zone(values)
    if zone == "UTC" or time.localtime().tm_gmtoff == 0:
        return None
    return (
        f"has hoodie.table.timeline.timezone={zone}, and this machine's time zone is not UTC (the "
        "environment variable TZ=UTC sets that of a program)"
    )


def _zone(values: dict[str, str]) -> str:
    return values.get("hoodie.table.timeline.timezone", "LOCAL").upper()  # Hudi's default


def load(storage: Storage) -> TableConfig:
    """Read the table's configuration, or raise InvalidTable if there is no table."""
    path, text = read_text(storage)
    return _parsed(text, f"{storage.root}/{path}", time.localtime().tm_gmtoff)


@functools.lru_cache(maxsize=256)
def _parsed(text: str, where: str, _offset: int) -> TableConfig:
    """Parse the properties, which each write reads; the time zone says if they can be written."""
    return TableConfig.parse(text, where)


def load_options(storage: Storage) -> WriteOptions:
    """Return the write options of the table; a file without a checksum is read as it is.

    Raises InvalidTable if the file is damaged: with fewer commits to retain, say, files would be
    deleted that readers need.
    """
    entry = storage.entry(OPTIONS)
    if entry is None:
        return WriteOptions()
    cure = "restore it, or delete it to use the default options"
    where = f"{storage.root}/{OPTIONS}"
    with readable(where, cure, OSError, InvalidConfig):
        content = read_bytes(storage, OPTIONS) if entry.size_bytes else b""  # a pipe would hang
        checked = b'"crc32"' in content  # else it is of an earlier version, or made by hand
        found = decode_record(content, where, cure) if checked else {**json.loads(content)}
        return WriteOptions().updated(found)
