"""Record keys and partition paths as text: key types, escapes, nulls, file-system collisions.

| table | record key | partition path |
| --- | --- | --- |
| no partition column | the value; several columns: `a:1,b:2` | `""` |
| one key, one partition column (SIMPLE) | the value | the value, or `column=value` in Hive style |
| the same, made of a time (TIMESTAMP) | the value | the time in a format: `time_partitions` |
| otherwise (COMPLEX) | `a:1,b:2`, also for one key column | values joined by `/` |

A null or empty partition value becomes `__HIVE_DEFAULT_PARTITION__`, a null or empty value in a
composite key `__null__` or `__empty__`. These texts define record identity: shuffles, folds, index
and merge compare only them, byte by byte. To prevent two records with the same text, values that
could be read as another key are refused. So are values that point outside the table, are hidden
from readers or break another engine's paths. The error names the column, the first five values and
the number of rows.

On a case-insensitive file system (macOS, Windows, some network disks) the partitions `NY` and `ny`
would be one folder: readers would find the rows of both in the first folder, and no upsert would
find those of the second one. So the second name is refused before a checkpoint is prepared or
sealed. Such file systems also treat the two Unicode forms of an accented letter as equal.

**Caveats**: only the table's own folder is checked for this; mounted subfolders may differ.
*Source:* KeyGenUtils, PartitionPathEncodeUtils. Hudi's own writer silently loses the rows of a
partition value `..`; here the batch is refused.
"""

import contextlib
import datetime
import functools
import itertools
import re
import unicodedata
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.display import counted
from hoodie_nb.errors import InvalidInput, InvalidTable
from hoodie_nb.storage.storage import META, Storage

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_NULLS = (NULL_PARTITION, "default")  # the second one is that of Hudi before 0.12
# in composite keys
_NULL = "__null__"
_EMPTY = "__empty__"
_DATES = (datetime.date.min, datetime.date.max)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_LONGEST = 65_536  # bytes; a filter hashes a key once per hash function
_DEEPEST = 3_000  # bytes of 4,096; the table's folder and the names of files come on top
_PATH = "cannot be a partition path: it "
_KEY_TYPES = (pa.string(), pa.int32(), pa.int64(), pa.date32(), pa.bool_())


class Refusal(NamedTuple):
    """The rows for which an InvalidInput was raised: a mask, the column, and why (or whys)."""

    bad: pa.Array
    column: str
    why: str | pa.Array


def check_key_types(config: TableConfig, schema: pa.Schema) -> None:
    """Raise InvalidInput if a key or partition column is missing or has no stable text.

    Raises InvalidTable if the table's own keys have a different text than ours.
    """
    if config.refusal:
        raise InvalidTable(config.refusal)
    for column in (*config.record_key, *config.partition_by):
        if column not in schema.names:
            raise InvalidInput(
                f"column {column!r} is needed (record key or partition path) but missing; "
                f"the columns are {schema.names}"
            )
        kind = schema.field(column).type
        if kind not in _KEY_TYPES:
            raise InvalidInput(
                f"column {column!r} has type {kind}, whose text differs between engines: use "
                "string, int, long, date or boolean for record keys and partition paths"
            )
        times = config.times if column in config.partition_by else None
        if times is not None and not times.fits(kind):
            raise InvalidTable(
                f"column {column!r} has type {kind}, but the partition paths are made of times in "
                f"{'texts' if times.given else 'numbers'}: write the table with the engine "
                "that created it"
            )


def record_keys(rows: pa.Table, config: TableConfig) -> pa.Array:
    """Return the record key of each row as text, or raise InvalidInput for null and empty keys."""
    texts = [_text(rows.column(name), name) for name in config.record_key]
    if not config.composite_key:
        empty = pc.fill_null(pc.equal(texts[0], ""), True)
        refuse_rows(
            rows.column(config.record_key[0]), empty, config.record_key[0], "is null or empty"
        )
        return _short(texts[0], config)
    missing = [pc.fill_null(pc.equal(text, ""), True) for text in texts]
    nothing = functools.reduce(pc.and_, missing)
    refuse_rows(texts[0], nothing, ", ".join(config.record_key), "are all null or empty")
    _refuse_ambiguous(texts, config.record_key)
    parts = [
        pc.binary_join_element_wise(f"{name}:", _placeholder(text), "")
        for name, text in zip(config.record_key, texts, strict=True)
    ]
    return _short(_one_array(pc.binary_join_element_wise(*parts, ",")), config)


def _short(keys: pa.Array, config: TableConfig) -> pa.Array:
    """Return the keys, or raise InvalidInput if one is too long for a bloom filter."""
    long = pc.greater(pc.binary_length(keys), _LONGEST)
    refuse_rows(keys, long, ", ".join(config.record_key), "has a key longer than 64 KiB")
    return keys


def _refuse_ambiguous(texts: list[pa.Array], names: tuple[str, ...]) -> None:
    """Refuse composite keys whose text could be that of another key.

    No value contains the `,name:` that follows it, and such a separator cannot overlap itself (its
    only comma is first), so a text can be split into values in only one way, and each placeholder
    has one meaning. The separator before a value is refused too, so that both of two conflicting
    keys are refused.
    """
    for position, (text, name) in enumerate(zip(texts, names, strict=True)):
        for word, meaning in ((_NULL, "null"), (_EMPTY, "an empty value")):
            why = f"has {word!r}, which is how the key of {meaning} is written,"
            refuse_rows(text, pc.fill_null(pc.equal(text, word), False), name, why)
        for other in names[max(1, position) : position + 2]:
            mark = f",{other}:"
            why = f"has {mark!r}, which separates the values of a composite key,"
            refuse_rows(text, pc.fill_null(pc.match_substring(text, mark), False), name, why)


def _placeholder(text: pa.Array) -> pa.Array:
    return pc.fill_null(pc.if_else(pc.equal(text, ""), _EMPTY, text), _NULL)


def partition_paths(rows: pa.Table, config: TableConfig) -> pa.Array:
    """Return the partition path of each row as text, or raise InvalidInput naming bad values."""
    if not config.partition_by:
        return pa.repeat(pa.scalar("", pa.string()), rows.num_rows)
    parts = [_partition_part(rows.column(name), name, config) for name in config.partition_by]
    if len(parts) == 1:
        return parts[0]
    paths = _one_array(pc.binary_join_element_wise(*parts, "/"))
    why = f"{_PATH}is longer than {_DEEPEST:,} bytes"
    refuse_rows(
        paths, pc.greater(pc.binary_length(paths), _DEEPEST), ", ".join(config.partition_by), why
    )
    return paths


def _partition_part(column: pa.ChunkedArray, name: str, config: TableConfig) -> pa.Array:
    if config.times is None:
        text = pc.fill_null(_text(column, name), "")
    else:
        given = _one_array(column)
        text, none = config.times.texts(given)
        why = f"{_PATH}is not a time from year 1 to 9999"
        if config.times.given:
            why += f" in the format {config.times.given}"
        refuse_rows(given, none, name, why)
    encoded = text.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    reasons = [] if config.times else [_objection(value, config, name) for value in values]
    first = next(filter(None, reasons), None)
    if first is not None:
        whys = pa.array([r and _PATH + r for r in reasons], pa.string()).take(encoded.indices)
        refuse_rows(text, whys.is_valid(), name, _PATH + first, whys)
    paths = [_part_text(value, config, name) for value in values]
    return pa.array(paths, pa.string()).take(encoded.indices)


def _part_text(value: str, config: TableConfig, name: str) -> str:
    text = escape(value) if config.url_encode else value
    text = text or NULL_PARTITION
    return f"{name}={text}" if config.hive_style else text


def partition_values(path: str, config: TableConfig, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Return the values of the partition columns that all rows with this partition path have.

    A value is left out if its text does not determine it: null and empty have one text.
    """
    parts = path.split("/")
    if not paths_have_values(config, schema) or len(parts) != len(config.partition_by):
        return {}
    found = zip(config.partition_by, parts, strict=True)
    values = {name: partition_value(part, config, schema.field(name)) for name, part in found}
    return {name: value for name, value in values.items() if value is not None}


def paths_have_values(config: TableConfig, schema: pa.Schema) -> bool:
    """Whether partition paths are made of the text of columns, as this library would write them."""
    known = {*config.partition_by} <= {*schema.names} and not config.unwritable
    return known and config.times is None


def partition_value(part: str, config: TableConfig, field: pa.Field) -> pa.Scalar | None:
    """Return the value of a column in its part of a partition path; None if it is not known."""
    text = part.removeprefix(f"{field.name}=") if config.hive_style else part
    text = unquote(text) if config.url_encode else text
    with contextlib.suppress(pa.ArrowInvalid, UnicodeEncodeError):  # a folder may have any name
        value = pa.scalar(text).cast(field.type) if field.type in _KEY_TYPES else None
        if value is not None and text not in _NULLS:
            own = text if pa.types.is_string(value.type) else value.cast(pa.string()).as_py()
            return value if _part_text(own, config, field.name) == part else None
    return None


def escape(value: str) -> str:
    """Return `value` with Hudi's set of special characters as `%XX`.

    >>> escape("a/b: c")
    'a%2Fb%3A c'
    """
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", value)


def _objection(value: str, config: TableConfig, name: str) -> str | None:
    if value == NULL_PARTITION:
        return "is Hudi's name for null"
    if value in (".", ".."):
        return "points outside the table"
    if _UNSAFE.search(value) and not config.url_encode:
        return (
            "has a character that is unsafe in a path (create the table with url_encode=True, "
            "or clean the values)"
        )
    if value[:1] in (".", "_") and not config.hive_style:
        return "starts with '.' or '_', which readers treat as hidden"
    if len(_part_text(value, config, name).encode()) > 255:
        return "is longer than 255 bytes"
    return None


def refuse_rows(
    values: pa.Array, bad: pa.Array, column: str, why: str, whys: pa.Array | None = None
) -> None:
    """Raise InvalidInput if there are bad values, naming the column and some of them."""
    count = pc.sum(bad).as_py() or 0
    if count:
        first = pc.unique(values.filter(bad)).to_pylist()[:5]
        shown = ", ".join(repr(value)[:80] for value in first)
        error = InvalidInput(
            f"column {column!r} {why} in {counted(count, 'row')}, e.g. {shown}: "
            "fix or filter these rows; none of the batch was written"
        )
        error.refusal = Refusal(bad, column, why if whys is None else whys)
        raise error


def _text(column: pa.ChunkedArray | pa.Array, name: str) -> pa.Array:
    if pa.types.is_date(column.type):
        first, last = (pa.scalar(day, pa.date32()) for day in _DATES)
        other = pc.or_(pc.less(column, first), pc.greater(column, last))
        why = "has dates outside 0001-01-01 to 9999-12-31, whose text differs between engines,"
        refuse_rows(pc.cast(column, pa.string()), pc.fill_null(other, False), name, why)
    return _one_array(pc.cast(column, pa.string()))


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


# --- folders of a case-insensitive file system ----------------------------------------------------


def ignores_case(storage: Storage) -> bool:
    """Whether the table's file system is case-insensitive."""
    return storage.entry(META.upper()) is not None


def refuse_colliding_folders(
    storage: Storage, written: Collection[str], *partitions: Collection[str]
) -> None:
    """Raise InvalidInput if a new partition's folder would be that of another partition."""
    new = [path for path in sorted(written) if not any(path in known for known in partitions)]
    if not new or not ignores_case(storage):
        return
    known = {_alike(path): path for path in itertools.chain(*partitions)}
    for path in new:
        other = known.setdefault(_alike(path), path)
        if other != path:
            raise InvalidInput(
                f"the partitions {other!r} and {path!r} are one folder on the case-insensitive "
                f"file system of {storage.root}: let the "
                "values differ in more than case; none of the batch was written"
            )


def _alike(path: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
