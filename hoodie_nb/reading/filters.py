"""`filters=` of a read: rows kept, columns needed, which files and row groups are skipped.

*Semantics*: a filter is applied to rows in the table's current types, after older files have been
converted. So a read with a filter returns the same rows as filtering the result of a full read.

*Work flow*: a file is skipped if what is known about all its rows shows that the filter is false:

| known | of |
| --- | --- |
| partition values in the path | tables whose paths this library writes; not null and empty values |
| the key range in the footer | the record key's text; the key column if it is one column of text |
| statistics of row groups | columns that the file has in the table's current type; not floats |

Folders of a table that this library has written are skipped in the same way, before they are
listed; but not for an earlier time, which is checked against everything that was cleaned.

Statistics of floats ignore NaN, which `x != 1` keeps. Those of dates and times in another calendar
(see `calendars`) are not used either. A key range does not say in which order it
is, so it is used only if UTF-8 and UTF-16 order agree on it (see `key_range`).

*Source:* HoodieFileIndex, PartitionPathEncodeUtils.
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from hoodie_nb.definition.keys import partition_value
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.files.base_file import read_errors, read_footer
from hoodie_nb.files.calendars import in_hybrid_calendar
from hoodie_nb.types.schema import RECORD_KEY

_FORMAT = ds.ParquetFileFormat()
_DISK = LocalFileSystem()
_ORDERED = (  # what Arrow compares as the statistics do
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_decimal128,
)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition on rows, the columns that it needs, and the column with the record key's text."""

    expression: pc.Expression
    needs: pa.Schema
    key: str | None = None

    @classmethod
    def of(cls, filters: object, schema: pa.Schema, key: str | None = None) -> "RowFilter":
        """Return the filter of an expression, SQL text, or lists as pyarrow.parquet accepts them.

        Raises InvalidConfig if it is none of them, or does not fit the columns of `schema`.
        """
        expression = _expression(filters, schema)
        empty = schema.empty_table()
        objection = _objection(expression, empty)
        if objection:
            raise InvalidConfig(
                f"`filters` {str(filters)[:200]} does not fit the table ({objection}); "
                f"its columns are {', '.join(f'{f.name}: {f.type}' for f in schema)}"
            )
        needed = [f for f in schema if _objection(expression, empty.drop_columns(f.name))]
        texts = {f.name for f in schema if pa.types.is_string(f.type)}
        return cls(expression, pa.schema(needed), key if key in texts else None)

    def kept(self, rows: pa.Table) -> pa.Table:
        """Return the rows for which the filter is true, or raise InvalidConfig if it fails."""
        return rows.filter(self.mask(rows))

    def mask(self, rows: pa.Table) -> pa.BooleanArray:
        """Return for each row whether the filter is true, or raise InvalidConfig if it fails."""
        try:
            found = projected(rows, {"mask": self.expression}).column(0)
            return pc.fill_null(found, False).combine_chunks()
        except pa.ArrowException as error:
            raise InvalidConfig(
                f"the filter {str(self.expression)[:200]} fails on values of the table "
                f"({str(error)[:200]}): compare with a value of the column's own type"
            ) from None

    def excludes_values(self, values: Mapping[str, pa.Scalar]) -> bool:
        """Whether the filter keeps no row with these values."""
        known = [name for name in values if name in self.needs.names]
        return self._excludes(pc.field(name) == values[name] for name in known)

    def row_groups(self, file: pq.ParquetFile, path: str) -> Sequence[int]:
        """Return the row groups of an open base file that may have rows that the filter keeps."""
        if self._excludes(self._key_range(file)):
            return []
        shifted = in_hybrid_calendar(file) and any(pa.types.is_temporal(f.type) for f in self.needs)
        if shifted or not all(_comparable(file.schema_arrow, field) for field in self.needs):
            return range(file.num_row_groups)
        with read_errors(path):
            try:
                found = _FORMAT.make_fragment(path, _DISK).subset(filter=self.expression)
            except pa.ArrowException:  # the filter fails on statistics: `kept` reports it
                return range(file.num_row_groups)
        return [group.id for group in found.row_groups]

    def _key_range(self, file: pq.ParquetFile) -> Iterable[pc.Expression]:
        keys = read_footer(file).range()
        if keys is not None:
            for name in {RECORD_KEY, self.key} & {*self.needs.names}:
                yield pc.field(name) >= keys.low
                yield pc.field(name) <= keys.high

    def folders(self, paths: Sequence[str], config: TableConfig, schema: pa.Schema) -> list[str]:
        """Return those of a folder's folders that may have rows, also below, that the filter keeps.

        Text that is not encoded may have slashes: then it continues in the folders below.
        """
        above = paths[0].split("/")[:-1] if paths else []
        known = list[pc.Expression]()
        for name, part in zip(config.partition_by, above, strict=False):
            value = partition_value(part, config, schema.field(name))
            if value is None or not _ends(value.type, config):
                return [*paths]
            known += [pc.field(name) == value] if name in self.needs.names else []
        name = next(iter(config.partition_by[len(above) :]), "")
        if name not in self.needs.names:
            return [*paths]
        field = schema.field(name)
        parts = ((path, partition_value(path.rpartition("/")[2], config, field)) for path in paths)
        values = [(value.as_py(), path) for path, value in parts if value is not None]
        after = "" if _ends(field.type, config) else "0"  # the character after the slash
        out = {*self._ruled_out(known, field, sorted(values), after)} if values else set[str]()
        return [path for path in paths if path not in out]

    def _ruled_out(
        self,
        known: Sequence[pc.Expression],
        field: pa.Field,
        values: Sequence[tuple[Any, str]],
        after: str,
    ) -> Iterator[str]:
        """Yield the folders without such rows, of sorted values: all, or those in either half."""
        column = pc.field(field.name)
        low = values[0][0]
        high = values[-1][0]
        most = column < high + after if after else column <= pa.scalar(high, field.type)
        facts = [column >= pa.scalar(low, field.type), most]
        if len(values) == 1 and not after:
            facts = [column == pa.scalar(low, field.type)]
        if self._excludes([*known, *facts]):
            yield from (path for _, path in values)
        elif len(values) > 1:
            half = len(values) // 2
            yield from self._ruled_out(known, field, values[:half], after)
            yield from self._ruled_out(known, field, values[half:], after)

    def _excludes(self, known: Iterable[pc.Expression]) -> bool:
        """Whether the filter is true for no row for which all that is `known` is true."""
        facts = [*known]
        if not facts:
            return False
        guarantee = functools.reduce(operator.and_, facts)
        piece = _FORMAT.make_fragment("-", _DISK, partition_expression=guarantee)  # never opened
        pieces = ds.FileSystemDataset([piece], self.needs, _FORMAT)
        try:
            return not any(True for _ in pieces.get_fragments(filter=self.expression))
        except pa.ArrowException:  # the filter fails on these values: `kept` reports it
            return False


def _ends(kind: pa.DataType, config: TableConfig) -> bool:
    """Whether the text of a value of a partition column ends at the first slash of a path."""
    return config.url_encode or not pa.types.is_string(kind)


def projected(rows: pa.Table, expressions: Mapping[str, pc.Expression]) -> pa.Table:
    """Return the values of expressions over rows, in their order."""
    return ds.InMemoryDataset(rows).scanner(columns=dict(expressions)).to_table()


def _expression(filters: object, schema: pa.Schema) -> pc.Expression:
    if isinstance(filters, pc.Expression):
        return filters
    if isinstance(filters, str):
        from hoodie_nb.reading.sql_text import condition  # sqlglot takes a tenth of a second

        return condition(filters, schema)
    try:
        return pq.filters_to_expression(filters)
    except (ValueError, TypeError, LookupError, pa.ArrowException) as error:
        raise InvalidConfig(
            f"`filters` {str(filters)[:200]} is not a filter ({error}): give an expression, as in "
            "pyarrow.dataset (pc.field('a') > 1), SQL text (\"a > 1\"), or lists of (column, "
            "operator, value)"
        ) from None


def _objection(expression: pc.Expression, empty: pa.Table) -> str | None:
    """Return why the filter does not work with these columns; None if it does."""
    if "FieldPath(" in str(expression):
        return "it gives the number of a column instead of its name"
    try:
        empty.filter(expression)
    except pa.ArrowException as error:
        return str(error).partition(" in ")[0].splitlines()[0]
    return None


def _comparable(stored: pa.Schema, field: pa.Field) -> bool:
    """Whether a column of a file has the given type, and statistics that can be relied on."""
    same = field.name in stored.names and stored.field(field.name).type == field.type
    return same and any(of_kind(field.type) for of_kind in _ORDERED)
