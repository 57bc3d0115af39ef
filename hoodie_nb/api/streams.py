"""`write_stream`: its options, their checks, and the combinations that are refused.

| option | values (the first is the default) |
| --- | --- |
| checkpoint | Spark's checkpoint folder for this stream, outside the table |
| pipeline | "auto": the fastest that the options allow ("direct", or "step3" with index="state"); |
| | or by name: "direct", and the RFC's "step3", "step2", "step1", "current" |
| index | None: the pipeline's own; "bloom+state", "bloom", "state" (this job's keys only) |
| operation | "upsert", "insert" (keys are not looked up), "delete" |
| output_mode | "append"; "update": of an aggregation, the groups that a batch has changed |
| trigger | "2 seconds", any duration, "available_now", or pyspark's, as a dict |
| commit_on | "checkpoint": when Spark reports its success; "write": inside the batch |
| commit_interval | None: commit each checkpoint; 10: every tenth; "30 seconds"; "background" |
| placement | "auto": this process writes small batches, by what the last ones had, and Spark's |
| | tasks the others (see `stream.placing`); "driver": this process; "executors": Spark's tasks |
| write_tasks | None: Spark's default parallelism; the number of writer tasks |
| batch_size, task_max_size | "32 MB", "256 MB": a bucket's or task's buffer before it is flushed |
| checkpoint_timeout | None; "5 minutes": a batch that takes longer is cancelled and runs again |
| max_restarts | 3: how often in a row a failed batch is run again |
| on_bad_record | "fail": a row that cannot be stored ends the job; "quarantine": it is set aside |
| | with the reason (see `Table.quarantine`), and counted in the commit; not with "current" |
| wait | None: the start waits up to a minute (on a store 130 seconds) while others write |
| options | file sizes, codec, bloom filter: see `hoodie_nb.config` |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hoodie_nb.api.definition import check_supported
from hoodie_nb.buckets.global_keys import refuse_global
from hoodie_nb.buckets.pipelines import PIPELINES, chosen_pipeline
from hoodie_nb.clock import seconds, wait_seconds
from hoodie_nb.config import parse_bytes
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.evidence.other_engines import refuse_foreign_logs
from hoodie_nb.records.sealing import Interval
from hoodie_nb.storage.storage import is_remote
from hoodie_nb.stream.checkpoint_folder import checkpoint_folder
from hoodie_nb.stream.settings import StreamSettings
from hoodie_nb.stream.triggers import trigger_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hoodie_nb.api.tables import Table
    from hoodie_nb.stream.job import Job

BACKGROUND_CHECKPOINTS = 100  # the most that wait with commit_interval="background"


def write_stream(
    stream: DataFrame,
    table: Table,
    *,
    checkpoint: str | os.PathLike[str],
    pipeline: str = "auto",
    index: str | None = None,
    operation: str = "upsert",
    output_mode: str = "append",
    trigger: str | Mapping[str, Any] = "2 seconds",
    commit_on: str = "checkpoint",
    commit_interval: int | str | None = None,
    placement: str = "auto",
    write_tasks: int | None = None,
    batch_size: int | str = "32 MB",
    task_max_size: int | str = "256 MB",
    checkpoint_timeout: float | str | None = None,
    max_restarts: int = 3,
    on_bad_record: str = "fail",
    wait: float | str | None = None,
    options: Mapping[str, object] | None = None,
) -> Job:
    """Start a stream into a table and return its job at once; `with` stops it at the block's end.

    `help("hoodie_nb.api.streams")` lists the options. Raises InvalidConfig, InvalidInput,
    InvalidTable or ConcurrentWriter at once.
    """
    from hoodie_nb.stream.job import Job

    check_supported(pipeline=pipeline, index=index)
    chosen = chosen_pipeline(pipeline, index)
    settings = StreamSettings(
        checkpoint=checkpoint_folder(checkpoint, _path_of(table)),
        operation=operation,
        output_mode=output_mode,
        trigger=trigger_options(trigger),
        write_tasks=write_tasks,
        commit_on=commit_on,
        pipeline=chosen.name,
        placement=placement,
        index=index or ("bloom+state" if commit_interval else chosen.index),
        checkpoint_timeout_s=_timeout(checkpoint_timeout),
        max_restarts=max_restarts,
        interval=_interval(commit_interval),
        on_bad_record=on_bad_record,
        wait_s=wait_seconds(wait, on_store=is_remote(table._handle.storage.root)),
    )
    handle = _stream_handle(table, batch_size, task_max_size, options)
    return Job(stream, handle, _checked(stream, settings, handle.config))


def _stream_handle(
    table: Table,
    batch_size: int | str,
    task_max_size: int | str,
    options: Mapping[str, object] | None,
) -> TableHandle:
    """Return a separate handle for the job, with the options of this stream."""
    given = table._handle
    handle = open_table(given.storage, drops_metadata_table=given.drops_metadata_table)
    refuse_foreign_logs(handle)
    sizes = {
        "batch_bytes": parse_bytes(batch_size, "batch_size"),
        "task_max_bytes": parse_bytes(task_max_size, "task_max_size"),
    }
    handle.options = handle.options.updated(sizes).updated(options or {})
    return handle


def _path_of(table: Table) -> str:
    """Return the path of a table, or raise InvalidConfig for anything else."""
    from hoodie_nb.api.tables import Table

    if not isinstance(table, Table):
        raise InvalidConfig(f"table={table!r} is not a table: give hn.Table.open(path)")
    return table.path


def _check_stream(stream: DataFrame, settings: StreamSettings) -> None:
    """Raise InvalidConfig for anything but a stream of a classic session that can use its index."""
    from hoodie_nb.api.session import require_classic

    if not hasattr(stream, "sparkSession"):
        raise InvalidConfig(
            f"cannot stream a {type(stream).__name__}: give a DataFrame of spark.readStream; "
            "for a batch use table.upsert"
        )
    require_classic(stream.sparkSession)
    if not stream.isStreaming:
        raise InvalidConfig("the DataFrame is not a stream: use table.upsert for batches")
    master = str(stream.sparkSession.sparkContext.master)
    on_hosts = settings.placement != "driver" and not master.startswith("local")
    if settings.index == "state" and on_hosts:
        raise InvalidConfig(
            "index='state' keeps the job's keys in the checkpoint folder, on the driver's disk, "
            f"but the tasks of {master} may run on other hosts: use index='bloom+state', whose "
            "keys are in the table's folder, or placement='driver'"
        )


def _checked(stream: DataFrame, settings: StreamSettings, config: TableConfig) -> StreamSettings:
    """Return the settings for a table, or raise InvalidConfig for one that is not possible."""
    for name in ("operation", "commit_on", "placement", "on_bad_record", "output_mode"):
        check_supported(**{name: getattr(settings, name)})
    _check_counts(write_tasks=(settings.write_tasks, 1), max_restarts=(settings.max_restarts, 0))
    settings = _kept_global(settings, config)
    _refuse_mixtures(settings)
    if config.merge_on_read:
        _refuse_for_logs(settings)
    _check_stream(stream, settings)
    return settings


def _check_counts(**given: tuple[object, int]) -> None:
    """Raise InvalidConfig for a number that is given and not an integer of at least its minimum."""
    for name, (value, least) in given.items():
        optional = value is None and name == "write_tasks"
        if not optional and not (type(value) is int and value >= least):
            raise InvalidConfig(f"{name}={value!r}: give an integer of {least} or more")


def _kept_global(settings: StreamSettings, config: TableConfig) -> StreamSettings:
    """Return settings that keep each key in one partition of the table, if its keys are global.

    Raises InvalidConfig if they cannot: only this process can move keys.
    """
    if not config.global_keys:
        return settings
    if settings.placement == "executors":
        refuse_global(config, "placement='executors'", "use placement='driver' or 'auto'")
    if settings.operation == "insert":
        refuse_global(config, "a stream with operation='insert'", "use operation='upsert'")
    if settings.index == "state":
        refuse_global(config, "index='state'", "use index='bloom+state' or 'bloom'")
    if settings.interval is not None:
        refuse_global(config, "commit_interval", "leave it out")
    return replace(settings, placement="driver")


def _refuse_mixtures(settings: StreamSettings) -> None:
    """Raise InvalidConfig for options that do not go together."""
    name = settings.pipeline
    pipeline = PIPELINES[settings.pipeline]
    of_job = settings.index == "state"
    here = settings.placement == "driver"
    if of_job and pipeline.routed:
        raise InvalidConfig(
            f"pipeline={name!r} looks keys up in the table, but index='state' knows those of "
            "one job only: use index='bloom+state' or 'bloom', or pipeline='step3'"
        )
    if of_job and settings.interval is not None:
        raise InvalidConfig(
            "commit_interval with index='state' would duplicate keys: sealed rows never reach that "
            "index; choose another index"
        )
    if here and pipeline.shuffle == "partition":
        raise InvalidConfig(
            f"placement='driver' needs pipeline='direct', 'step2' or 'step3', not {name!r}"
        )
    if pipeline.serial_instant and settings.on_bad_record == "quarantine":
        raise InvalidConfig(
            f"on_bad_record='quarantine' is not possible with pipeline={name!r}, whose tasks "
            "check rows before there is an instant: use 'step1', 'step2', 'step3' or 'direct'"
        )
    inserts = settings.operation == "insert" or settings.commit_on == "write"
    if inserts and settings.interval is not None:
        raise InvalidConfig("commit_interval needs commit_on='checkpoint' and upserts or deletes")


def _refuse_for_logs(settings: StreamSettings) -> None:
    """Raise InvalidConfig for what a stream cannot do with a merge-on-read table yet."""
    refused = [
        (PIPELINES[settings.pipeline].serial_instant, "pipeline='current'", "leave it out"),
        (settings.index == "state", "index='state'", "use index='bloom+state'"),
    ]
    for given, what, instead in refused:
        if given:
            raise InvalidConfig(f"{what} is not possible with a merge-on-read table yet: {instead}")


def _timeout(value: float | str | None) -> float | None:
    return None if value is None else seconds(value, "timeout")


def _interval(value: int | str | None) -> Interval | None:
    if value is None:
        return None
    if value == "background":
        return Interval(checkpoints=BACKGROUND_CHECKPOINTS, background=True)
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise InvalidConfig(
                f"commit_interval={value}: give 1 or more checkpoints, '30 seconds' or 'background'"
            )
        return Interval(checkpoints=value)
    return Interval(duration_ms=round(seconds(value, "commit_interval") * 1000))
