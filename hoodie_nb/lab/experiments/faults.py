"""`hn.faults`: which faults a running job can be given, when each fires, what is pending."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.stream.job import Job

_FAULTS = {
    "lose_success": "lose the next success notification: its instant spans checkpoints",
    "kill_writer": "kill the next batch's writer tasks: the batch is rolled back and run again",
    "time_out_checkpoint": "cancel the running or next batch: it is rolled back and run again",
    "crash_after_files": "crash the coordinator before prepare: the batch is rolled back",
    "crash_before_commit": "crash the coordinator after prepare: the restart commits",
    "kill": "end the job like a crash, in the middle of a batch",
}
_AT_ONCE: dict[str, Callable[[Job], None]] = {"kill": Job.kill, "time_out_checkpoint": Job.time_out}


@dataclass(frozen=True, slots=True)
class _Once:
    """The pending faults of one job; each fires once, and says so."""

    emit: Callable[..., object]
    waiting: list[str] = field(default_factory=list)

    def __call__(self, fault: str) -> bool:
        if fault not in self.waiting:
            return False
        self.waiting.remove(fault)
        self.emit("fault_fired", fault=fault)
        return True


def _waiting(job: Job) -> list[str]:
    checkpointing = job.checkpointing
    if not isinstance(checkpointing.fault_fires, _Once):
        checkpointing.fault_fires = _Once(job.events.emit)
    return checkpointing.fault_fires.waiting


def pending(job: Job) -> list[str]:
    """Return the injected faults of a job that have not fired yet."""
    return [*_waiting(job)]


def names() -> dict[str, str]:
    """Return the names of the faults with their descriptions."""
    return dict(_FAULTS)


def inject(job: Job, name: str) -> None:
    """Inject a fault into a running job, to fire once; raise InvalidConfig for an unknown name.

    After a crash the job continues like its next process would; after `kill` it has ended.
    """
    if name not in _FAULTS:
        raise InvalidConfig(f"fault {name!r} is unknown: choose from {', '.join(_FAULTS)}")
    at_once = _AT_ONCE.get(name)
    job.events.emit("fault_injected", fault=name, waits=at_once is None)
    if at_once is None:
        _waiting(job).append(name)
    else:
        at_once(job)
