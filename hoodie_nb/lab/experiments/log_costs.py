"""What both table types cost: CPU seconds of a batch of updates, and of a read of the whole table.

    compared(Workload(rows=1e7, row_bytes=100, batch_rows=1e5), merge_after=(3, 10))

*Writes*: copy-on-write rewrites the touched file groups with every batch. Merge-on-read adds a log
to each, and after `merge_after` logs rewrites it, with the logs; also if its logs have as many rows
as its base file. The mean over such a cycle is given.

*Reads*: a file group with logs is merged by every read, which costs something for each row of its
base file, and for each row and file of its logs. Again the mean over a cycle is given.

*CPU*: seven coefficients, fitted to half of what `benchmarks/snapshot.py` measured; the other half
is predicted (`benchmarks/cost_model.py`). Rewriting costs what the cost model says.

**Caveats**: Updates only: new keys are never logs, and rewrite the file that they fill up. Rows are
as narrow as in the benchmark, on a local disk. What logs take on disk until cleaned is left out.
"""

from collections.abc import Sequence

import pandas as pd

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.lab.experiments.cost_model import CPU_S, Workload, features

APPEND_CPU_S = {  # of one core: per commit, per row and per log file
    "commit": 0.00802,
    "appended_row": 1.15e-06,
    "log_file": 0.00374,
}
READ_CPU_S = {  # of one core: per row of base files, more if they have logs; per row and log
    "base_row": 2.33e-07,
    "merged_row": 1.05e-07,
    "logged_row": 5.58e-07,
    "log_file": 0.000725,
}


def append_features(load: Workload) -> dict[str, float]:
    """Return what the CPU time of a batch of logs depends on."""
    return {"commit": 1.0, "appended_row": load.batch_rows, "log_file": load.touched_files}


def read_features(rows: float, logged_rows: float, log_files: float) -> dict[str, float]:
    """Return what the CPU time of a read depends on; all file groups have logs, or none."""
    merged = rows if log_files else 0.0
    return {
        "base_row": rows,
        "merged_row": merged,
        "logged_row": logged_rows,
        "log_file": log_files,
    }


def _seconds(costs: dict[str, float], counts: dict[str, float]) -> float:
    return sum(costs[name] * count for name, count in counts.items())


def logs_per_merge(load: Workload, merge_after: int) -> int:
    """Return after how many logs a file group is rewritten."""
    if merge_after < 1:
        raise InvalidConfig(f"merge_after={merge_after}: choose 1 or more logs")
    rows = load.touched_files * load.rows_per_file
    return max(1, min(merge_after, int(rows / load.batch_rows) + 1))


def copy_on_write(load: Workload) -> tuple[float, float]:
    """Return the CPU seconds of a batch and of a read."""
    read = _seconds(READ_CPU_S, read_features(load.rows, 0, 0))
    return _seconds(CPU_S, features(load)), read


def merge_on_read(load: Workload, merge_after: int) -> tuple[float, float]:
    """Return the CPU seconds of a batch and of a read, the means of a cycle."""
    logs = logs_per_merge(load, merge_after)
    files = load.touched_files
    rewrite = _seconds(CPU_S, features(load))
    held = read_features(files * load.rows_per_file, logs * load.batch_rows, logs * files)
    rewrite += _seconds(READ_CPU_S, held | {"base_row": 0.0})
    append = _seconds(APPEND_CPU_S, append_features(load))
    reads = []
    for count in range(logs + 1):
        merged = files * load.rows_per_file if count else 0.0
        found = read_features(load.rows, count * load.batch_rows, count * files)
        reads.append(_seconds(READ_CPU_S, found | {"merged_row": merged}))
    return (logs * append + rewrite) / (logs + 1), sum(reads) / len(reads)


def compared(load: Workload, merge_after: Sequence[int] = (3, 10)) -> pd.DataFrame:
    """Return a row per table type and merge interval: CPU seconds of a batch and of a read.

    `cheaper up to` is the number of reads per batch up to which merge-on-read takes less in sum.
    """
    write, read = copy_on_write(load)
    rows: dict[str, tuple[float, float, float | None]] = {"copy-on-write": (write, read, None)}
    for count in merge_after:
        wrote, took = merge_on_read(load, count)
        gain = max(0.0, (write - wrote) / (took - read))
        rows[f"merge-on-read, {count} logs"] = (wrote, took, round(gain, 1))
    frame = pd.DataFrame.from_dict(
        rows, orient="index", columns=["batch, CPU s", "read, CPU s", "cheaper up to reads"]
    )
    return frame.round({"batch, CPU s": 3, "read, CPU s": 3})
