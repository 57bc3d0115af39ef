"""Time as an interface: the system clock, one that a test moves by hand, durations as text."""

import re
import time
from datetime import UTC, datetime
from typing import Protocol

from hoodie_nb.errors import InvalidConfig

WAIT_S = 60.0  # how long a write waits for other processes, unless it gets another `wait`
STORE_WAIT_S = 130.0  # the same on an object store: a lease, twice


class Clock(Protocol):
    """The source of instant times and of the pauses between retries."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait that long."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Wait that long."""
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when it is set; sleeping advances it at once."""

    def __init__(self, start_ms: int = 1_767_225_600_000) -> None:
        self.ms = start_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return self.ms

    def sleep(self, seconds: float) -> None:
        """Advance by that long."""
        self.ms += round(seconds * 1000)


def instant_time(ms: int) -> str:
    """Return Hudi's 17 digits `yyyyMMddHHmmssSSS` (UTC) for `ms`.

    >>> instant_time(0)
    '19700101000000000'
    """
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y%m%d%H%M%S") + f"{ms % 1000:03d}"


def instant_ms(time17: str) -> int:
    """Return milliseconds since 1970 of 17 (or 14) digits; `ValueError` for anything else."""
    if not time17.isdigit() or len(time17) not in (14, 17):
        raise ValueError(f"{time17!r} is not a 17-digit instant time")
    moment = datetime.strptime(time17[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(time17[14:] or 0)


class Age:
    """An elapsed time on a clock that may be set back: backward steps do not count."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._seen = 0
        self._elapsed = 0

    def elapsed_ms(self, since_ms: int, now_ms: int) -> int:
        """Return the milliseconds since `since_ms` that have passed in this process."""
        if self._since != since_ms:
            self._since = since_ms
            self._seen = min(since_ms, now_ms)
            self._elapsed = 0
        self._elapsed += max(0, now_ms - self._seen)
        self._seen = now_ms
        return self._elapsed


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


def wait_seconds(wait: float | str | None, *, on_store: bool = False) -> float:
    """Return the seconds of an argument `wait=`; for None a minute, or on a store 130."""
    default = STORE_WAIT_S if on_store else WAIT_S
    return default if wait is None else seconds(wait, "wait")
