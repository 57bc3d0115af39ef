"""Faults to put into a running job, to watch what recovery makes of them."""

from collections.abc import Callable

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.pipeline.stream import Job


def _lose_success(job: Job) -> None:
    job.checkpointing.lose_next += 1


_FAULTS: dict[str, tuple[str, Callable[[Job], None]]] = {
    "lose_success": ("hide the next success notification: its instant spans", _lose_success),
    "kill": ("end the job as a crash would, in the middle of a batch", Job.kill),
}


def names() -> dict[str, str]:
    """Return the faults there are, and what each does."""
    return {name: does for name, (does, _) in _FAULTS.items()}


def inject(job: Job, name: str) -> None:
    """Put a fault into a running job, or raise InvalidConfig naming those there are."""
    if name not in _FAULTS:
        raise InvalidConfig(f"fault {name!r} is unknown: there are {', '.join(_FAULTS)}")
    _FAULTS[name][1](job)
