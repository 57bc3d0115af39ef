"""The options of `write_stream`, checked, as one value."""

from dataclasses import dataclass, field
from typing import Any

from hoodie_nb.clock import WAIT_S
from hoodie_nb.records.sealing import Interval


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of a job."""

    checkpoint: str
    operation: str = "upsert"
    output_mode: str = "append"
    trigger: dict[str, Any] = field(default_factory=dict)
    write_tasks: int | None = None
    commit_on: str = "checkpoint"
    pipeline: str = "direct"
    index: str = "bloom+state"
    placement: str = "executors"
    checkpoint_timeout_s: float | None = None
    max_restarts: int = 3
    interval: Interval | None = None
    on_bad_record: str = "fail"
    wait_s: float = WAIT_S
