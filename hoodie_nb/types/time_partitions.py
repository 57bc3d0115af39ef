"""TimestampBasedKeyGenerator: partition paths out of times, their formats and zones.

| property, after `hoodie.keygen.timebased.` | writable with |
| --- | --- |
| `timestamp.type` | `UNIX_TIMESTAMP`, `EPOCHMILLISECONDS`, `EPOCHMICROSECONDS`, `SCALAR`, \
`DATE_STRING` |
| `timestamp.scalar.time.unit` | needed for `SCALAR`: `DAYS` to `NANOSECONDS` |
| `output.dateformat` | `yyyy`, `MM`, `dd`, `HH`; between them at most one of `-_./` or a space |
| `input.dateformat` | of a `DATE_STRING`: all that the path needs, `mm`, `ss`; also `:` and `'T'` |
| `timezone`, else `output.timezone` | `UTC`, `GMT`, `GMT+8:00`; needed for numbers |

A null number means 1 in its unit, a null text the start of 1970. Units finer than milliseconds are
truncated towards zero. A text is not converted to another zone. Times outside the years 1 to 9999,
and texts that are not exactly in the format, are refused.

**Caveats**: all other tables can be read but not written. If no zone is given, Hudi uses the zone
of its JVM for numbers, and for zones with names the rules of its time zone database. Neither is in
the properties, and neither are the formats of a CustomKeyGenerator.
*Source:* TimestampBasedAvroKeyGenerator, compared with Java Hudi 1.2.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PREFIX = "hoodie.keygen.timebased."
_UNITS = {  # name: how many of them are milliseconds, or how many milliseconds it has
    **{"DAYS": (86_400_000, 1), "HOURS": (3_600_000, 1), "MINUTES": (60_000, 1)},
    **{"SECONDS": (1_000, 1), "MILLISECONDS": (1, 1)},
    **{"MICROSECONDS": (1, 1_000), "NANOSECONDS": (1, 1_000_000)},
}
_TYPES = {
    "UNIX_TIMESTAMP": "SECONDS",
    "EPOCHMILLISECONDS": "MILLISECONDS",
    "EPOCHMICROSECONDS": "MICROSECONDS",
}
_KNOWN = {
    *("timestamp.type", "timestamp.scalar.time.unit", "output.dateformat", "input.dateformat"),
    *("timezone", "output.timezone", "input.timezone"),
}
_DIRECTIVES = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_TOKEN = re.compile("yyyy|MM|dd|HH|mm|ss")
_OUTPUT = re.compile("(?:yyyy|MM|dd|HH)(?:[-_./ ]?(?:yyyy|MM|dd|HH))*")
_INPUT = re.compile("(?:yyyy|MM|dd|HH|mm|ss)(?:(?:[-_./ :]|'T')?(?:yyyy|MM|dd|HH|mm|ss))*")
_ZONE = re.compile(r"(?:UTC|GMT|Etc/UTC)|GMT([+-])(\d\d?)(?::?(\d\d))?")
# of the years 1 to 9999
_FIRST_MS = -62_135_596_800_000
_LAST_MS = 253_402_300_799_999
_HOUR_MS = 3_600_000
Numbers = npt.NDArray[np.int64]


class Unclear(ValueError):
    """The properties do not determine the partition paths, or not in a way that is supported."""


@dataclass(frozen=True, slots=True)
class TimePartition:
    """How the partition path of a row is made of its column: numbers in a unit, or texts."""

    output: str
    unit: str = ""
    offset_ms: int = 0
    given: str = ""  # the format of texts

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "TimePartition | None":
        """Return it for a table's properties; None for other tables, Unclear if not known."""
        own = {k.removeprefix(PREFIX): v for k, v in properties.items() if k.startswith(PREFIX)}
        if not own:
            return None
        unknown = sorted(own.keys() - _KNOWN)
        if unknown:
            raise Unclear(f"has {PREFIX}{unknown[0]}={own[unknown[0]]}")
        kind = own.get("timestamp.type", "")
        output = own.get("output.dateformat", "")
        if not _OUTPUT.fullmatch(output):
            raise Unclear(f"has {PREFIX}output.dateformat={output}")
        zone = own.get("timezone") or own.get("output.timezone", "")
        if kind == "DATE_STRING":
            offset_ms = _offset_ms(zone or "UTC")  # of nulls: a text is in the zone of its path
            return cls(output, offset_ms=offset_ms, given=_input(own, output))
        unit = _TYPES.get(kind) or own.get("timestamp.scalar.time.unit", "").upper()
        if unit not in _UNITS or kind not in (*_TYPES, "SCALAR"):
            raise Unclear(f"has {PREFIX}timestamp.type={kind} with the unit {unit or '(none)'}")
        return cls(output, unit, _offset_ms(zone))

    @property
    def levels(self) -> int:
        """Return how many folders a partition path has."""
        return self.output.count("/") + 1

    def fits(self, kind: pa.DataType) -> bool:
        """Whether a column of that type has the values that are meant."""
        return kind == pa.string() if self.given else bool(pa.types.is_integer(kind))

    def texts(self, column: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the partition path of each value, and a mask of those that have none."""
        return self._of_texts(column) if self.given else self._of_numbers(column)

    def _of_numbers(self, column: pa.Array) -> tuple[pa.Array, pa.Array]:
        many, few = _UNITS[self.unit]
        values: Numbers = np.asarray(pc.fill_null(column.cast(pa.int64()), 1))
        low = _FIRST_MS * few // many
        high = _LAST_MS * few // many
        bad = (values < low) | (values > high)
        values = np.where(bad, 0, values)
        ms = values * many if few == 1 else values // few + ((values % few != 0) & (values < 0))
        ms = ms + self.offset_ms
        bad |= (ms < _FIRST_MS) | (ms > _LAST_MS)
        hours = pa.array(np.where(bad, 0, ms) // _HOUR_MS).dictionary_encode()
        times = pc.multiply(hours.dictionary, _HOUR_MS).cast(pa.timestamp("ms"))
        form = _TOKEN.sub(_directive, self.output)
        return pc.strftime(times, form).take(hours.indices), pa.array(bad)

    def _of_texts(self, column: pa.Array) -> tuple[pa.Array, pa.Array]:
        forms = (self.given.replace("'", ""), self.output)
        given, output = (_TOKEN.sub(_directive, form) for form in forms)
        start = datetime(1970, 1, 1) + timedelta(milliseconds=self.offset_ms)
        encoded = pc.fill_null(column, start.strftime(given)).dictionary_encode()
        times = pc.strptime(encoded.dictionary, format=given, unit="s", error_is_null=True)
        same = pc.equal(pc.strftime(times, format=given), encoded.dictionary)  # else February 30
        real = pc.and_(same, pc.greater_equal(times, pa.scalar(datetime(1, 1, 1), times.type)))
        bad = pc.invert(pc.fill_null(real, False)).take(encoded.indices)
        return pc.strftime(times, format=output).take(encoded.indices), bad


def _input(own: Mapping[str, str], output: str) -> str:
    """Return the format of texts, if it has all that the path needs."""
    given = own.get("input.dateformat", "")
    tokens = _TOKEN.findall(given)
    needed = {*_TOKEN.findall(output), "yyyy"}
    if not _INPUT.fullmatch(given) or len({*tokens}) < len(tokens) or not needed <= {*tokens}:
        raise Unclear(
            f"has {PREFIX}input.dateformat={given} for {PREFIX}output.dateformat={output}"
        )
    zones = own.get("input.timezone", ""), own.get("output.timezone", "")
    if zones[0] != zones[1] and not own.get("timezone"):
        raise Unclear(f"has {PREFIX}input.timezone={zones[0]} and output.timezone={zones[1]}")
    return given


def _directive(token: re.Match[str]) -> str:
    return _DIRECTIVES[token[0]]


def _offset_ms(zone: str) -> int:
    found = _ZONE.fullmatch(zone)
    if found is None:
        raise Unclear(f"has {PREFIX}timezone={zone or '(none: that of the JVM that wrote it)'}")
    minutes = int(found[2] or 0) * 60 + int(found[3] or 0)
    return minutes * 60_000 * (-1 if found[1] == "-" else 1)
