"""The public function for streams: `write_stream`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hoodie_nb.commit.checkpointing import Interval
from hoodie_nb.config import parse_bytes
from hoodie_nb.definition import check_supported
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.runners.checkpoint_folder import checkpoint_folder
from hoodie_nb.runners.settings import StreamSettings
from hoodie_nb.runners.triggers import seconds, trigger_options
from hoodie_nb.table.handle import TableHandle, open_table
from hoodie_nb.writer.pipelines import PIPELINES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hoodie_nb.api import Table
    from hoodie_nb.runners.job import Job


def write_stream(
    stream: DataFrame,
    table: Table,
    *,
    checkpoint: str,
    pipeline: str = "step3",
    index: str | None = None,
    operation: str = "upsert",
    trigger: str | Mapping[str, Any] = "2 seconds",
    commit_on: str = "checkpoint",
    commit_interval: int | str | None = None,
    placement: str = "executors",
    write_tasks: int | None = None,
    batch_size: int | str = "32 MB",
    task_max_size: int | str = "256 MB",
    checkpoint_timeout: float | str | None = None,
    max_restarts: int = 3,
    on_bad_record: str = "fail",
    quarantine: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Job:
    """Start a stream into a table and return its job at once.

    `checkpoint`: Spark's folder; `trigger`: "2 seconds", "available_now" or pyspark's. The newest
    file wins ties (limits: README). Raises InvalidConfig, InvalidInput or ConcurrentWriter at once.
    """
    from hoodie_nb.runners.job import Job
    from hoodie_nb.session import require_classic

    check_supported(pipeline=pipeline, index=index, operation=operation, commit_on=commit_on)
    check_supported(placement=placement, on_bad_record=on_bad_record, quarantine=quarantine)
    if commit_interval is not None:
        _check_sealing(operation, commit_on, index)
    require_classic(stream.sparkSession)
    if not stream.isStreaming:
        raise InvalidConfig("the DataFrame is not a stream: use table.upsert for batches")
    timeout = None if checkpoint_timeout is None else seconds(checkpoint_timeout, "timeout")
    settings = StreamSettings(
        checkpoint=checkpoint_folder(checkpoint, table.path),
        operation=operation,
        trigger=trigger_options(trigger),
        write_tasks=write_tasks,
        commit_on=commit_on,
        pipeline=pipeline,
        index=index or ("bloom+state" if commit_interval else PIPELINES[pipeline].index),
        checkpoint_timeout_s=timeout,
        max_restarts=max_restarts,
        interval=_interval(commit_interval),
    )
    return Job(stream, _stream_handle(table, batch_size, task_max_size, options), settings)


def _stream_handle(
    table: Table,
    batch_size: int | str,
    task_max_size: int | str,
    options: Mapping[str, object] | None,
) -> TableHandle:
    """Return a separate handle for the job, with the options of this stream."""
    handle = open_table(table.path)
    sizes = {
        "batch_bytes": parse_bytes(batch_size, "batch_size"),
        "task_max_bytes": parse_bytes(task_max_size, "task_max_size"),
    }
    handle.options = handle.options.updated(sizes).updated(options or {})
    return handle


def _check_sealing(operation: str, commit_on: str, index: str | None) -> None:
    """Raise InvalidConfig for what cannot be done with a `commit_interval`."""
    if operation == "insert" or commit_on == "write":
        raise InvalidConfig("commit_interval needs commit_on='checkpoint' and upserts or deletes")
    if index == "state":
        raise InvalidConfig(
            "commit_interval with index='state' would duplicate keys: sealed rows never reach that "
            "index; choose another index"
        )


def _interval(value: int | str | None) -> Interval | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise InvalidConfig(
                f"commit_interval={value}: give 1 or more checkpoints, or '30 seconds'"
            )
        return Interval(checkpoints=value)
    return Interval(duration_ms=round(seconds(value, "commit_interval") * 1000))
