"""Write options: their defaults, limits and Hudi's names (file sizes, codec, bloom, cleaning).

| Python name | Hudi's name | default |
| --- | --- | --- |
| max_file_bytes | hoodie.parquet.max.file.size | 120 MB |
| small_file_bytes | hoodie.parquet.small.file.limit | 100 MB; 0 disables small-file filling |
| record_size_bytes | hoodie.copyonwrite.record.size.estimate | from the rows; on executors 1024 |
| record_size_threshold | hoodie.record.size.estimation.threshold | 1.0 |
| bloom_fpp | hoodie.index.bloom.fpp | 1e-9 |
| codec | hoodie.parquet.compression.codec | snappy (Hudi: gzip, 7.6 times slower to merge); \
not for columns that it does not shrink |
| batch_bytes | write.batch.size | 32 MB per bucket |
| task_max_bytes | write.task.max.size | 256 MB per task |
| index_load_budget | hoodie_nb.index.load.budget | 4 files read for the index per commit |
| index_max_bytes | hoodie_nb.index.max.bytes | 1 GB of state index; 0 disables it |
| clean_automatic | hoodie.clean.automatic | true: delete old base files after commits |
| clean_policy | hoodie.clean.policy | KEEP_LATEST_COMMITS, KEEP_LATEST_BY_HOURS or \
KEEP_LATEST_FILE_VERSIONS |
| clean_commits | hoodie.clean.commits.retained | 10 commits, and those of the last hour within \
bounds (see `actions.clean_plan`); a number is exact. The one before can be read, too |
| clean_hours | hoodie.clean.hours.retained | 24 hours |
| clean_versions | hoodie.clean.fileversions.retained | 3 files of each file group |
| archive_automatic | hoodie.archive.automatic | true: archive old instants after commits |
| keep_min | hoodie.keep.min.commits | 20 commits stay on the timeline; those that cleaning retains\
, too |
| keep_max | hoodie.keep.max.commits | 30 commits; with more of them the oldest are archived |
| archive_beyond_savepoint | hoodie.archive.beyond.savepoint | false only: from a savepoint on \
all commits stay |
| archive_batch | hoodie.commits.archival.batch | 10 records in a block of the archive |
| append_above_bytes | hoodie_nb.append.above.bytes | 1 MB: smaller file slices of merge-on-read \
tables are rewritten, larger ones get log files |
| compact_commits | hoodie.compact.inline.max.delta.commits | 10 log files; with so many of them \
(by file group up to a third fewer) a slice is rewritten when it is written to |
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hoodie_nb.errors import InvalidConfig

_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_MOST = 1 << 62
_OF_A_TABLE = ("hoodie.table.", "hoodie.datasource.", "hoodie.record.merge.", "hoodie.index.type")
CLEAN_POLICIES = ("KEEP_LATEST_COMMITS", "KEEP_LATEST_BY_HOURS", "KEEP_LATEST_FILE_VERSIONS")


def parse_bytes(value: int | str, name: str = "size") -> int:
    """Return a size in bytes from `33554432` or `"32 MB"`.

    >>> parse_bytes("32 MB")
    33554432
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?b?)\s*", str(value), re.IGNORECASE)
    if isinstance(value, bool) or match is None:
        raise InvalidConfig(f"{name}={value!r} is not a size: write 33554432 or '32 MB'")
    unit = match[2].lower()
    size = float(match[1]) * _UNITS[unit if unit in _UNITS else unit + "b"]
    if size > _MOST:
        raise InvalidConfig(f"{name}={str(value)[:40]!r} is too large")
    return int(size)


def _positive(value: object, name: str) -> int:
    size = parse_bytes(value, name)  # type: ignore[arg-type]  # parse_bytes refuses other types
    if size < 1:
        raise InvalidConfig(f"{name}={value!r} must be above 0")
    return size


def _size(value: object, name: str) -> int:
    if str(value).strip().startswith("-"):
        return 0
    return parse_bytes(value, name)  # type: ignore[arg-type]  # parse_bytes refuses other types


def _count(value: object, name: str) -> int:
    if not re.fullmatch(r"\d+", str(value)):
        raise InvalidConfig(f"{name}={value!r} must be an integer of 0 or more")
    return int(str(value))


def _retained(value: object, name: str) -> int:
    if not (number := _count(value, name)):
        raise InvalidConfig(f"{name}={value!r} must be an integer of 1 or more")
    return number


def flag(value: object, name: str) -> bool:
    """Return a truth value given as such or as text, or raise InvalidConfig."""
    if (text := str(value).lower()) not in ("true", "false"):
        raise InvalidConfig(f"{name}={value!r}: choose true or false")
    return text == "true"


def _not_beyond(value: object, name: str) -> bool:
    if flag(value, name):
        raise InvalidConfig(
            f"{name}={value!r} is not supported: readers such as hudi-rs hide the rows of commits "
            "that were archived after a savepoint. Leave it out; delete savepoints that are no "
            "longer needed, and archiving continues"
        )
    return False


def _policy(value: object, name: str) -> str:
    if (policy := str(value).upper()) not in CLEAN_POLICIES:
        raise InvalidConfig(f"{name}={value!r}: choose {', '.join(CLEAN_POLICIES)}")
    return policy


def _share(value: object, name: str) -> float:
    try:
        share = float(str(value))
    except ValueError:
        share = -1.0
    if not share > 0:
        raise InvalidConfig(f"{name}={value!r} must be a number above 0")
    return share


def _probability(value: object, name: str) -> float:
    share = _share(value, name)
    if share >= 1:
        raise InvalidConfig(f"{name}={value!r} must be between 0 and 1")
    return share


def _codec(value: object, name: str) -> str:
    codec = str(value).lower()
    if codec not in ("snappy", "zstd", "gzip", "none", "uncompressed"):
        raise InvalidConfig(f"{name}={value!r}: choose snappy, zstd, gzip or none")
    return "none" if codec == "uncompressed" else codec


def _option(name: str, default: object, check: Callable[[object, str], Any]) -> Any:  # noqa: ANN401
    """Return a field with Hudi's name for it; `check` returns the value that it stands for."""
    return field(default=default, metadata={"name": name, "check": check})


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write, in addition to the table's own configuration."""

    max_file_bytes: int = _option("hoodie.parquet.max.file.size", 125_829_120, _positive)
    small_file_bytes: int = _option("hoodie.parquet.small.file.limit", 104_857_600, _size)
    record_size_bytes: int | None = _option(
        "hoodie.copyonwrite.record.size.estimate", None, _positive
    )
    record_size_threshold: float = _option("hoodie.record.size.estimation.threshold", 1.0, _share)
    bloom_fpp: float = _option("hoodie.index.bloom.fpp", 1e-9, _probability)
    codec: str = _option("hoodie.parquet.compression.codec", "snappy", _codec)
    batch_bytes: int = _option("write.batch.size", 32 << 20, _positive)
    task_max_bytes: int = _option("write.task.max.size", 256 << 20, _positive)
    index_load_budget: int = _option("hoodie_nb.index.load.budget", 4, _count)
    index_max_bytes: int = _option("hoodie_nb.index.max.bytes", 1 << 30, _size)
    clean_automatic: bool = _option("hoodie.clean.automatic", True, flag)
    clean_policy: str = _option("hoodie.clean.policy", CLEAN_POLICIES[0], _policy)
    clean_commits: int | None = _option("hoodie.clean.commits.retained", None, _retained)
    clean_hours: int = _option("hoodie.clean.hours.retained", 24, _retained)
    clean_versions: int = _option("hoodie.clean.fileversions.retained", 3, _retained)
    archive_automatic: bool = _option("hoodie.archive.automatic", True, flag)
    keep_min: int = _option("hoodie.keep.min.commits", 20, _retained)
    keep_max: int = _option("hoodie.keep.max.commits", 30, _retained)
    archive_beyond_savepoint: bool = _option("hoodie.archive.beyond.savepoint", False, _not_beyond)
    archive_batch: int = _option("hoodie.commits.archival.batch", 10, _retained)
    append_above_bytes: int = _option("hoodie_nb.append.above.bytes", 1 << 20, _size)
    compact_commits: int = _option("hoodie.compact.inline.max.delta.commits", 10, _retained)

    def updated(self, options: Mapping[str, object]) -> "WriteOptions":
        """Return a copy with `options` (Hudi's or Python names) applied, or raise InvalidConfig."""
        changed = self
        if not isinstance(options, Mapping):
            raise InvalidConfig(f"options={options!r}: give a dict of names and values")
        known = {f.metadata["name"]: f for f in fields(self)} | {f.name: f for f in fields(self)}
        for name, value in options.items():
            if name not in known:
                raise InvalidConfig(_unknown(str(name), list(known)))
            option = known[name]
            changed = replace(changed, **{option.name: option.metadata["check"](value, name)})
        if changed.task_max_bytes < changed.batch_bytes:
            raise InvalidConfig(
                f"task_max_size ({changed.task_max_bytes} bytes) must be at least batch_size "
                f"({changed.batch_bytes} bytes)"
            )
        if changed.keep_max <= changed.keep_min:
            raise InvalidConfig(
                f"hoodie.keep.max.commits={changed.keep_max} must be greater than "
                f"hoodie.keep.min.commits={changed.keep_min}: give both"
            )
        return changed

    def as_options(self) -> dict[str, object]:
        """Return the non-default options under Hudi's names; `updated` is the inverse."""
        values = [(f, getattr(self, f.name)) for f in fields(self)]
        return {f.metadata["name"]: value for f, value in values if value != f.default}


def _unknown(name: str, known: list[str]) -> str:
    if name.startswith(_OF_A_TABLE):
        return (
            f"option {name!r} is not one of a write: what defines a table are arguments of "
            "`Table.create`; docs/hudi-options.md lists Hudi's names of them"
        )
    near = difflib.get_close_matches(name, known, 1, cutoff=0.8)
    hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(sorted(known))}"
    return f"option {name!r} is unknown: {hint}"
