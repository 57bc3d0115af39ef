"""Two processes write one table, their batches ahead of their turns: Java reads it, and goes on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from writers.batch_loop import SCHEMA, model
from writers.test_batches import check, make, writer

from hoodie_nb import Table

from .client import Judge
from .readers import agree, java, ours
from .tables import LAYOUTS, appending

pytestmark = pytest.mark.oracle
COUNT = 30
FIELDS = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.precombine.field": "ts",
}


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
def test_java_reads_what_was_written_ahead(judge: Judge, tmp_path: Path, table_type: str) -> None:
    """Each snapshot is the same, now and as of commits between; Java's next batch is on top."""
    root = tmp_path / "t"
    table = make(root, 9, table_type)
    fits = []
    with writer(root, "A", COUNT) as first, writer(root, "B", COUNT) as second:
        for process in (first, second):
            assert process.stdout is not None
            fits += [int(line.split()[2]) for line in process.stdout][-1:]
            assert process.wait(60) == 0
    assert sum(fits) >= COUNT / 2
    names = check(root, 0)
    agree(judge, table)
    for instant in table.history()["requested_time"][-8::3]:
        assert java(judge, table, instant) == ours(table, instant)
    row = model(names)["A-1"] | {"ts": 9, "v": "java"}
    given = pa.Table.from_pylist([row, row | {"id": "new"}], schema=SCHEMA)
    options = appending(LAYOUTS["simple"], 9) | FIELDS
    options["hoodie.datasource.write.table.type"] = table_type.upper()
    judge.write(table.path, given, options)
    found = {row["id"]: row["v"] for row in agree(judge, Table.open(root))}
    wanted = {key: row["v"] for key, row in model(names).items()}
    assert found == wanted | {"A-1": "java", "new": "java"}
