"""Parsing of durations and triggers."""

import re
from collections.abc import Mapping
from typing import Any

from hoodie_nb.errors import InvalidConfig

POLL_S = 0.05  # interval of polling while waiting

_UNITS = {
    0.001: ("ms", "millisecond", "milliseconds"),
    1.0: ("", "s", "sec", "second", "seconds"),
    60.0: ("m", "min", "minute", "minutes"),
    3600.0: ("h", "hour", "hours"),
}
_SECONDS = {name: size for size, names in _UNITS.items() for name in names}


def seconds(value: float | str, name: str = "duration") -> float:
    """Return seconds of `20`, `"20 seconds"` or `"500 ms"`.

    >>> seconds("2 minutes")
    120.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value).lower())
    if match is None or match[2] not in _SECONDS:
        raise InvalidConfig(f"{name}={value!r} is not a duration: write 20 or '20 seconds'")
    return float(match[1]) * _SECONDS[match[2]]


def trigger_options(trigger: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return pyspark's trigger arguments for `"2 seconds"`, `"available_now"` or pyspark's own."""
    if isinstance(trigger, Mapping):
        known = {"processingTime", "availableNow"}
        if len(trigger) != 1 or not set(trigger) <= known:
            raise InvalidConfig(f"trigger={dict(trigger)!r}: choose one of {sorted(known)}")
        return dict(trigger)
    if trigger in ("available_now", "availableNow"):
        return {"availableNow": True}
    if not any(c.isdigit() for c in str(trigger)):  # Spark's "once" is one of them
        raise InvalidConfig(
            f"trigger={trigger!r}: write a duration, such as '2 seconds', or 'available_now', "
            "which reads what is there and ends"
        )
    milliseconds = round(1000 * seconds(trigger, "trigger"))  # Spark does not accept "ms" and "min"
    return {"processingTime": f"{milliseconds} milliseconds"}
