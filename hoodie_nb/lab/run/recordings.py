"""Recordings: their file format, reading and writing it; those that ship with the package.

*On disk*: JSON lines, gzip. The first line describes the run (`pipeline`, `operators`, `partitions`
of the table, `run` in words); each other line is an event: kind, ms since 1970, values. One
recording of each pipeline ships with the package; `benchmarks/recordings.py` creates them.

    >>> [event.kind for event in recorded("step3")[:2]]
    ['job_started', 'batch_started']
"""

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.events import Event

_FOLDER = Path(__file__).with_name("recorded")
_SUFFIX = ".jsonl.gz"


def names() -> list[str]:
    """Return the names of the recordings in the package."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}"))


def recorded(name: str) -> list[Event]:
    """Return the events of a recording in the package; InvalidConfig for an unknown name."""
    return load(_shipped(name))


def description(name: str) -> dict[str, Any]:
    """Return the description of a recording in the package: its first line."""
    return _read(_shipped(name))[0]


def save(
    events: Iterable[Event], path: str | os.PathLike[str], about: Mapping[str, Any] | None = None
) -> None:
    """Write events to a file (`*.jsonl.gz`), equal bytes for equal events."""
    lines = [dict(about or {}), *([e.kind, e.at_ms, dict(e.values)] for e in events)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    Path(path).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def load(path: str | os.PathLike[str]) -> list[Event]:
    """Return the events of a file that `save` wrote, or raise InvalidInput."""
    return _read(Path(path))[1]


def _shipped(name: str) -> Path:
    if name not in names():
        raise InvalidConfig(f"recording {name!r} is unknown: choose from {', '.join(names())}")
    return _FOLDER / f"{name}{_SUFFIX}"


def _read(path: Path) -> tuple[dict[str, Any], list[Event]]:
    try:
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        events = [Event(str(k), int(at_ms), dict(values)) for k, at_ms, values in lines[1:]]
        return dict(lines[0]), events
    except (OSError, EOFError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InvalidInput(f"{path} is not a recording of a job's events: {error}") from error
