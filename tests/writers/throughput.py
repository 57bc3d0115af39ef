"""Batches per second of one process, and of two that write the same keys: `throughput.py 20`.

Each of them writes for some seconds into a new table, in turns with the other arm, three times;
printed are the batches of each round and the ratio of the medians. The tables are compared with
the model.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["HOODIE_NB_TESTING"] = "1"

from writers.batch_loop import acknowledged
from writers.test_batches import check, log, make, writer

from hoodie_nb import Table

ROUNDS = 3


def batches(names: str, version: int, table_type: str, seconds: float) -> int:
    """Let a process for each name write; return how many batches were acknowledged."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "table")
        make(root, version, table_type)
        with ExitStack() as stack:
            processes = [stack.enter_context(writer(root, name, -1)) for name in names]
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()  # it has begun
            before = sum(len(acknowledged(log(root, name))) for name in names)
            time.sleep(seconds)
            after = sum(len(acknowledged(log(root, name))) for name in names)
        Table.open(root).clean()  # recovers from the ends of the processes
        check(root, len(names))
        return after - before


def main(seconds: str) -> None:
    """Measure both types of tables."""
    for table_type in ("copy_on_write", "merge_on_read"):
        found: dict[str, list[int]] = {"a": [], "ab": []}
        for _ in range(ROUNDS):
            for names, counts in found.items():
                counts.append(batches(names, 9, table_type, float(seconds)))
        ratio = median(found["ab"]) / median(found["a"])
        print(f"{table_type}: one {found['a']}, two {found['ab']}, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
