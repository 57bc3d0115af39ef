"""Points in the code where a test can inject a failure.

`hit(name)` costs one dictionary lookup when nothing is armed. Arm with
`HOODIE_NB_FAILPOINTS="name=action[:arg][@hit]"` (several separated by `;`) in a process that also
has `HOODIE_NB_TESTING=1`; without that variable an armed failpoint is refused.

Actions: `kill` (SIGKILL to this process), `exit`, `raise:ENOSPC|EIO|EACCES|Timeout`, `stop`
(SIGSTOP), `sleep:seconds`, `torn:fraction` (truncate the current file, then SIGKILL). `@3` acts on
the third hit only; without it every hit acts.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from hoodie_nb.errors import InvalidConfig

NAMES: tuple[str, ...] = (
    "coord.requested.pre",
    "coord.requested.post",
    "coord.inflight.post",
    "coord.statuses.pre",
    "coord.prepare.pre",
    "coord.prepare.post",
    "coord.redo.pre",
    "coord.reapply.post",
    "coord.seal.pre",
    "coord.seal.post",
    "coord.markers.post",
    "coord.partition.post",
    "coord.publish",
    "coord.publish.post",
    "coord.commit.pre",
    "coord.commit.post",
    "coord.progress.post",
    "coord.unseal.post",
    "coord.index.pre",
    "coord.index.post",
    "coord.sweep.post",
    "rollback.plan.post",
    "rollback.files.post",
    "rollback.instant.post",
    "rollback.completed.post",
    "clean.plan.post",
    "clean.inflight.post",
    "clean.file",
    "clean.files.post",
    "clean.completed.post",
    "restore.plan.post",
    "restore.inflight.post",
    "restore.rollback.post",
    "restore.withdrawn.post",
    "restore.commit.post",
    "restore.completed.post",
    "savepoint.inflight.post",
    "savepoint.completed.post",
    "savepoint.deleted.post",
    "archive.orphan",
    "archive.orphans.post",
    "archive.lsm.file",
    "archive.lsm.manifest",
    "archive.lsm.version",
    "archive.log.post",
    "archive.pending",
    "archive.completed",
    "archive.completed.post",
    "archive.lsm.removed",
    "assigner.start",
    "writer.start",
    "writer.flush",
    "writer.data",
    "writer.data.post",
    "quarantine.data.post",
    "quarantine.publish.post",
    "stream.batch.post",
    "spark.rows.post",
    "spark.commit.pre",
)


@dataclass(slots=True)
class _Armed:
    action: str
    argument: str
    on_hit: int | None
    hits: int = 0


def _parse(text: str) -> dict[str, _Armed]:
    armed: dict[str, _Armed] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, _, rest = part.partition("=")
        rest, _, hit = rest.partition("@")
        action, _, argument = rest.partition(":")
        if name not in NAMES or action not in _ACTIONS:
            raise InvalidConfig(
                f"failpoint {part!r} is unknown: names are hoodie_nb.failpoints.NAMES, "
                f"actions {', '.join(_ACTIONS)}"
            )
        try:
            _ARGUMENTS.get(action, str)(argument)
            armed[name] = _Armed(action, argument, int(hit) if hit else None)
        except (ValueError, AttributeError):
            raise InvalidConfig(
                f"failpoint {part!r} has an argument that its action does not take"
            ) from None
    return armed


def _raise(argument: str, path: str | None) -> None:
    if argument == "Timeout":
        raise TimeoutError("failpoint: timed out")
    number = _number(argument)
    raise OSError(number, os.strerror(number), path)


def _number(argument: str) -> int:
    return int(getattr(errno, "EIO" if argument in ("", "Timeout") else argument))


def _torn(argument: str, path: str | None) -> None:
    if path is not None:
        os.truncate(path, int(os.path.getsize(path) * float(argument)))
    os.kill(os.getpid(), signal.SIGKILL)


_ACTIONS: dict[str, Callable[[str, str | None], None]] = {
    "kill": lambda argument, path: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda argument, path: os._exit(int(argument or 1)),
    "raise": _raise,
    "stop": lambda argument, path: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda argument, path: time.sleep(float(argument)),
    "torn": _torn,
}
_ARGUMENTS: dict[str, Callable[[str], object]] = {
    "exit": lambda argument: int(argument or 1),
    "raise": _number,
    "sleep": float,
    "torn": float,
}
_armed: dict[str, _Armed] = {}


def arm(text: str) -> None:
    """Arm the failpoints listed in `text` and disarm all others (testing only)."""
    if text and os.environ.get("HOODIE_NB_TESTING") != "1":
        raise InvalidConfig("failpoints are for tests: set HOODIE_NB_TESTING=1 as well")
    _armed.clear()
    _armed.update(_parse(text))


def call(name: str, action: Callable[[], None], on_hit: int | None = None) -> None:
    """Arm one more failpoint with a custom action (testing only)."""
    arm_nothing_else = dict(_armed)
    arm(f"{name}=exit")
    _ACTIONS[f"call {name}"] = lambda argument, path: action()
    _armed.update({**arm_nothing_else, name: _Armed(f"call {name}", "", on_hit)})


def hit(name: str, path: str | None = None) -> None:
    """Act if `name` is armed; `path` is the current file, for `torn`."""
    armed = _armed.get(name)
    if armed is None:
        return
    armed.hits += 1
    if armed.on_hit is None or armed.hits == armed.on_hit:
        _ACTIONS[armed.action](armed.argument, path)


arm(os.environ.get("HOODIE_NB_FAILPOINTS", ""))
