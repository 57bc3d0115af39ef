"""Partition folders that something else has changed: copied, or without their metadata file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import schema_of

from hoodie_nb import Table
from hoodie_nb.clock import ManualClock
from hoodie_nb.pipeline.checkpointing import Interval
from hoodie_nb.pipeline.local import LocalJob
from hoodie_nb.pipeline.stages import PIPELINES
from hoodie_nb.table.handle import open_table

SCHEMA = schema_of()


def create(path: Path, **options: object) -> Table:
    """Return an empty table with key `id`, partition `p`, ordering `ts`."""
    return Table.create(
        path, schema=SCHEMA, record_key="id", partition_by="p", ordering="ts", **options
    )


def rows(*given: tuple[str, str, int]) -> pa.Table:
    """Return rows from (id, p, ts); `v` is ten times `ts`."""
    return pa.Table.from_pylist(
        [{"id": k, "p": p, "ts": ts, "v": ts * 10} for k, p, ts in given], schema=SCHEMA
    )


def copied_partition(path: Path) -> None:
    """Make a table whose partition `y` is a copy of the folder `x`: the same file ids."""
    table = create(path / "t")
    table.upsert(rows(("a", "x", 1), ("b", "x", 1)))
    shutil.copytree(path / "t" / "x", path / "t" / "y")


UPDATE = (("a", "x", 2), ("c", "x", 2), ("b", "y", 3), ("d", "y", 3))
HELD = {"x": {"a": 2, "b": 1, "c": 2}, "y": {"a": 1, "b": 3, "d": 3}}


def held(path: Path) -> dict[str, dict[str, int]]:
    """Return the ordering value of each key, by the folder whose newest files hold it."""
    found: dict[str, dict[str, int]] = {}
    for piece in Table.open(path).file_groups().itertuples():
        keys = found.setdefault(piece.partition_path, {})
        for row in pq.ParquetFile(path / piece.partition_path / piece.file_name).read().to_pylist():
            assert keys.setdefault(row["_hoodie_record_key"], row["ts"]) == row["ts"]
    return found


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1)])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_one_file_id_in_two_partitions_is_two_buckets(
    tmp_path: Path, pipeline: str, interval: Interval | None
) -> None:
    """Rows of a partition that was copied stay in their folder, in every pipeline."""
    copied_partition(tmp_path)
    table = open_table(tmp_path / "t", ManualClock())
    job = LocalJob(table, pipeline=pipeline, index="bloom", interval=interval)
    job.write(rows(*UPDATE))
    job.checkpoint(1)
    job.complete(1)
    assert held(tmp_path / "t") == HELD


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_a_batch_into_a_copied_partition(tmp_path: Path, batch_bytes: int) -> None:
    """A batch of both partitions changes each folder's own rows, flushed early or not."""
    copied_partition(tmp_path)
    table = open_table(tmp_path / "t")
    table.options = table.options.updated({"batch_bytes": batch_bytes})
    Table(table).upsert(rows(*UPDATE))
    assert held(tmp_path / "t") == HELD
    Table(table).delete(rows(("a", "x", 9), ("d", "y", 9)))
    assert held(tmp_path / "t") == {"x": {"b": 1, "c": 2}, "y": {"a": 1, "b": 3}}
