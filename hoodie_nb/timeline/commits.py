"""Commit metadata (`.commit`): write statuses and their JSON or Avro, as Hudi stores them.

*On disk*: JSON (table version 6), or an Avro file with the same names (versions 8 and 9), which is
recognised by its first bytes. `partitionToWriteStats` maps a partition path (`""` without
partitions) to one entry per base file; `extraMetadata.schema` is the Avro schema without meta
fields; `operationType` is Hudi's name of the operation. The previous commit of a new file group is
the string `"null"`. Our commits have a checksum over their instant and their whole content,
`extraMetadata._hoodie_nb_checksum`: `2-` (JSON) or `3-` (Avro) and the CRC-32. An engine that
upgrades the table converts JSON to Avro and drops fields, so the checksum of a converted commit is
not compared.

*Source:* HoodieCommitMetadata, HoodieWriteStat, HoodieReplaceCommitMetadata.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.checksums import StoredFile
from hoodie_nb.storage.storage import joined
from hoodie_nb.types.avro_file import MAGIC, decode, encode, load_schema

_CHECKSUM = "_hoodie_nb_checksum"
_LOG_CRCS = "_hoodie_nb_log_crcs"
_JSON = "2-"
_AVRO = "3-"
_SCHEMA = load_schema("HoodieCommitMetadata")
_IDS = {"type": "map", "values": {"type": "array", "items": "string"}}
_REPLACED = {"name": "partitionToReplaceFileIds", "type": ["null", _IDS], "default": None}
_REPLACE_SCHEMA = {
    **_SCHEMA,
    "name": _SCHEMA["name"].replace("HoodieCommit", "HoodieReplaceCommit"),
    "fields": [*_SCHEMA["fields"], _REPLACED],
}
OVERWRITES = {"partitions": "insert_overwrite", "table": "insert_overwrite_table"}  # by scope
CLUSTER = "cluster"
COMPACT = "compact"
_COUNTERS = ["numWrites", "numInserts", "numUpdateWrites", "numDeletes"]
_COUNTERS += ["totalWriteBytes", "fileSizeInBytes"]
_ZEROS = ["numUpdates", "totalWriteErrors", "totalLogReadTimeMs", "totalLogRecords"]
_ZEROS += ["totalLogFilesCompacted", "totalLogSizeCompacted", "totalUpdatedRecordsCompacted"]
_ZEROS += ["totalLogBlocks", "totalCorruptLogBlock", "totalRollbackBlocks"]


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """One file of a bucket writer: its staged path, its contents, the file it replaces.

    It is a base file, or a log file that is added to a slice, which replaces none. Counts are rows,
    `bytes_written` is the file's size and `crc` its CRC-32; `previous_file` is the base file of the
    previous slice, None for a new file group. `deleted_path` is a staged Arrow file with the rows
    of this checkpoint that are not in the file: deletes, and rows that lost against the slice. If
    deletes matched no row, there is no file and `file_name` is empty. `part` counts the writes of
    an instant that was redone. `keys` is the path of the keys for the index: all keys of the file,
    or only the new ones. *Source:* RFC-24 "write status".
    """

    partition_path: str
    file_id: str
    file_name: str
    staged_path: str
    bytes_written: int
    rows: int
    inserts: int
    updates: int
    deletes: int
    previous_file: str | None = None
    previous_commit: str | None = None
    seconds: float = 0.0
    deleted_path: str | None = None
    keys: str | None = None
    keys_complete: bool = False
    crc: int = 0
    deleted_bytes: int = 0
    deleted_crc: int = 0
    part: int = 0

    @property
    def is_log(self) -> bool:
        """Whether the file is a log of its slice, and not a base file."""
        return self.file_name.startswith(".")

    @property
    def path(self) -> str:
        """Return the final path of the file, relative to the table's root."""
        return joined(self.partition_path, self.file_name)

    @property
    def facts(self) -> dict[str, object]:
        """Return the values of the event `file_written`."""
        return {
            "partition": self.partition_path,
            "file_id": self.file_id,
            "rows": self.rows,
            "bytes": self.bytes_written,
            "seconds": self.seconds,
            "log": self.is_log,
        }

    @property
    def staged_file(self) -> StoredFile | None:
        """Return the staged base file as written; None if there is none."""
        if not self.file_name:
            return None
        return StoredFile(self.staged_path, self.bytes_written, self.crc)

    @property
    def staged_deletes(self) -> StoredFile | None:
        """Return the staged deletes as written; None if there are none."""
        if self.deleted_path is None:
            return None
        return StoredFile(self.deleted_path, self.deleted_bytes, self.deleted_crc)

    @property
    def marker(self) -> str:
        """Return the marker's path below the instant's marker folder."""
        return f"{self.path}.marker.{'MERGE' if self.previous_file else 'CREATE'}"

    def to_json(self) -> str:
        """Return the status as text; `parse` is the inverse."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "WriteStatus":
        """Return the status that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """A decoded completed file of a commit or replacecommit.

    `verified`: our checksum covers all of it, so no file is missing from it.
    """

    operation: str
    stats: Mapping[str, Sequence[Mapping[str, Any]]]
    extra: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, Sequence[str]] = field(default_factory=dict)
    verified: bool = False

    @classmethod
    def parse(cls, content: bytes, where: str) -> "CommitMetadata":
        """Return the metadata in a completed file, or raise InvalidTable naming the file.

        The file name in `where` begins with the instant, to which a commit of ours must belong.
        """
        folder, _, name = where.rpartition("/")
        time17 = re.split(r"[._]", name)[0]
        try:
            raw = _typed(_decoded(content), dict)
            stats = _typed(raw.get("partitionToWriteStats") or {}, dict)
            extra = _typed(raw.get("extraMetadata") or {}, dict)
            replaced = _typed(raw.get("partitionToReplaceFileIds") or {}, dict)
            kind = _AVRO if content.startswith(MAGIC) else _JSON
            avro = str(extra.get(_CHECKSUM, kind)).startswith(_AVRO)
            converted = avro != (kind == _AVRO)  # by another engine, with the table's version
            ours = _CHECKSUM.encode() in content and not converted
            found = cls(
                operation=str(raw.get("operationType") or "UNKNOWN"),
                stats={p: [_checked(s) for s in _typed(v or [], list)] for p, v in stats.items()},
                extra={k: _typed(v, str) for k, v in extra.items() if v is not None},
                replaced={p: [_typed(i, str) for i in v or []] for p, v in replaced.items()},
                verified=ours and extra.get(_CHECKSUM) == _checksum(time17, raw, kind),
            )
            if ours and not found.verified:
                raise ValueError("damaged, or of another instant: its checksum does not match")
            return found
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidTable(
                f"{where} is not a readable commit ({error}): restore it from a backup. Without "
                f"one, if it is the newest, move the files {joined(folder, time17)}* and "
                f"*_{time17}.parquet out of the table: this gives its rows up"
            ) from None

    def total(self, name: str) -> int:
        """Return the sum over all files of one of Hudi's counters."""
        return sum(int(s.get(name) or 0) for stats in self.stats.values() for s in stats)

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """Return what is said of each base file, by its path from the table's root."""
        return {stat["path"]: stat for stats in self.stats.values() for stat in stats}

    @property
    def log_crcs(self) -> Mapping[str, int]:
        """Return the CRC-32 of each log file that this library wrote, by its path."""
        return cast(Mapping[str, int], json.loads(self.extra.get(_LOG_CRCS, "{}")))

    @property
    def replaced_groups(self) -> list[tuple[str, str]]:
        """Return the file groups that were removed, by partition path and file id."""
        return [(folder, file_id) for folder, ids in self.replaced.items() for file_id in ids]


def _decoded(content: bytes) -> Any:  # noqa: ANN401 -- JSON or a record of Avro
    return decode(content) if content.startswith(MAGIC) else json.loads(content)


def _typed(value: Any, kind: type) -> Any:  # noqa: ANN401 -- JSON
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} is not of type {kind.__name__}")
    return value


def _checked(stat: Any) -> Mapping[str, Any]:  # noqa: ANN401 -- JSON
    """Return a file's statistics if its path is text and its counters are integers."""
    _typed(_typed(stat, dict).get("path"), str)
    for name in _COUNTERS:
        _typed(stat.get(name) or 0, int)
    return cast(Mapping[str, Any], stat)


def _checksum(time17: str, content: Mapping[str, Any], prefix: str) -> str:
    """Return the checksum of a commit of ours, over its instant, its files and its notes."""
    extra = content.get("extraMetadata") or {}
    carried = {k: v for k, v in extra.items() if k != _CHECKSUM}
    text = json.dumps([time17, {**content, "extraMetadata": carried}], sort_keys=True)
    return f"{prefix}{zlib.crc32(text.encode()):08x}"


def action_of(operation: str, *, merge_on_read: bool = False) -> str:
    """Return the action of an operation's instants, in a table of that type."""
    if operation in (*OVERWRITES.values(), CLUSTER):
        return "replacecommit"
    return "deltacommit" if merge_on_read else "commit"


def encode_commit(
    time17: str,
    statuses: Sequence[WriteStatus],
    operation: str,
    extra: Mapping[str, str],
    *,
    replaced: Mapping[str, Sequence[str]] | None = None,
    avro: bool = False,
) -> bytes:
    """Return the completed file of the commit of `statuses` at an instant, in JSON or Avro.

    `replaced` are the file groups, by partition path, that it removes from the table.
    """
    partitions: dict[str, list[dict[str, Any]]] = {}
    for status in statuses:
        partitions.setdefault(status.partition_path, []).append(_stat(status))
    crcs = {status.path: status.crc for status in statuses if status.is_log}
    if crcs:
        extra = {**extra, _LOG_CRCS: json.dumps(crcs)}
    content: dict[str, Any] = {
        "partitionToWriteStats": partitions,
        "compacted": False,
        "extraMetadata": {**extra},
        "operationType": operation.upper(),
    }
    if replaced is not None:
        content["partitionToReplaceFileIds"] = {p: [*ids] for p, ids in replaced.items()}
    if avro:
        schema = _SCHEMA if replaced is None else _REPLACE_SCHEMA
        content = decode(encode(schema, content))  # with every field, as readers will see it
        content["extraMetadata"][_CHECKSUM] = _checksum(time17, content, _AVRO)
        return encode(schema, content)
    content["extraMetadata"] = {**extra, _CHECKSUM: _checksum(time17, content, _JSON)}
    return json.dumps(content, indent=2).encode()


def _stat(status: WriteStatus) -> dict[str, Any]:
    milliseconds = round(status.seconds * 1000)
    return {
        "fileId": status.file_id,
        "path": status.path,
        "prevCommit": status.previous_commit or "null",
        "prevBaseFile": status.previous_file,
        "numWrites": status.rows,
        "numInserts": status.inserts,
        "numUpdateWrites": status.updates,
        "numDeletes": status.deletes,
        "totalWriteBytes": status.bytes_written,
        "fileSizeInBytes": status.bytes_written,
        "partitionPath": status.partition_path,
        "cdcStats": None,
        "tempPath": None,
        "minEventTime": None,
        "maxEventTime": None,
        **dict.fromkeys(_ZEROS, 0),
        **(_of_log(status) if status.is_log else {}),
        "runtimeStats": {
            "totalScanTime": 0,
            "totalUpsertTime": milliseconds if status.previous_file else 0,
            "totalCreateTime": 0 if status.previous_file else milliseconds,
        },
    }


def _of_log(status: WriteStatus) -> dict[str, Any]:
    """Return what a commit says of a log file in addition, as HoodieDeltaWriteStat."""
    return {"logVersion": 1, "logOffset": 0, "baseFile": "", "logFiles": [status.file_name]}
