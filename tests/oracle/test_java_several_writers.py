"""Two processes write one table, their batches ahead of their turns: Java reads it, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from writers.judged import judged
from writers.test_batches import check, make, writer

from .client import Judge

pytestmark = pytest.mark.oracle
COUNT = 30


@pytest.mark.parametrize("table_type", ["copy_on_write", "merge_on_read"])
def test_java_reads_what_was_written_ahead(judge: Judge, tmp_path: Path, table_type: str) -> None:
    """Each snapshot is the same, now and as of commits between; Java's next batch is on top."""
    root = tmp_path / "t"
    make(root, 9, table_type)
    fits = []
    with writer(root, "A", COUNT) as first, writer(root, "B", COUNT) as second:
        for process in (first, second):
            assert process.stdout is not None
            fits += [int(line.split()[2]) for line in process.stdout][-1:]
            assert process.wait(60) == 0
    assert sum(fits) >= COUNT / 2
    check(root, 0)
    judged(judge, root, 9, table_type)
