"""The runs of many tasks become one batch: in rounds, with few runs in memory at a time."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from core.tables import hudi_rows, schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.spark_format import staged_runs
from hoodie_nb.spark_format.hudi_options import parse
from hoodie_nb.spark_format.sink import BatchSink, StagedRows, keys_of

SCHEMA = schema_of()


@pytest.mark.parametrize("count", [31, 32, 33, 150])
def test_the_runs_of_many_tasks_are_merged_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """No merge has more than 32 runs, and the rows are those of a dict."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", ordering="ts")
    sink = BatchSink(open_table(table.path), SCHEMA, parse({"path": table.path}))
    chance, model, reports, merged = random.Random(count), dict[str, dict](), [], list[int]()
    merge = staged_runs.merged

    def counted(runs: list, by: tuple[str, ...]) -> object:
        merged.append(len(runs))
        return merge(runs, by)

    monkeypatch.setattr(staged_runs, "merged", counted)
    monkeypatch.setattr(staged_runs, "_PIECE_ROWS", 7)
    for task in range(count):
        rows = [
            {"id": f"k{chance.randrange(500)}", "p": "p", "ts": task * 100 + n, "v": n}
            for n in range(20)
        ]
        model |= {row["id"]: row for row in rows}
        intake = sink._plan.intake
        keyed = [intake.keyed(pa.Table.from_pylist(rows, SCHEMA), pa.array(range(20), pa.int64()))]
        runs = staged_runs.stage_runs(sink._plan, keyed, f"{task}-0-0", 1 << 20)
        reports.append(StagedRows(tuple(runs), keys_of(intake.config)))
    sink.commit(reports)
    wanted = without_meta(pa.Table.from_pylist([*model.values()], SCHEMA))
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) == wanted
    assert max(merged) <= 32 and sum(merged) >= count and table.fsck() == []
