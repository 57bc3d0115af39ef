"""What it costs to keep each checkpoint's rows: `python benchmarks/sealed.py [--base 200000]`.

Writes the same batches in two ways, in this process and in turn: *direct*, the files are written in
the checkpoint and committed at its notification; *sealed*, the keyed rows are made durable and each
checkpoint is applied from them as an instant of its own. Prints Markdown: CPU seconds per
checkpoint, the ratio, and the bytes of the sealed runs. Both tables must be equal.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import Interval
from hoodie_nb.rows.runs import save_run

PARTITIONS, ROUNDS = 8, 7
DAYS = [f"2024-01-{day:02d}" for day in range(1, PARTITIONS + 1)]
SCHEMA = pa.schema(
    [("key", pa.string()), ("day", pa.string()), ("ts", pa.int64()), ("text", pa.string())]
)


def rows_of(ids: np.ndarray, round_: int) -> pa.Table:
    """Return a row of some 100 bytes for each id."""
    rng = np.random.default_rng(round_)
    columns = [
        pa.array(np.char.mod("k%010d", ids).astype(object)),
        pa.array(np.char.mod("2024-01-%02d", ids % PARTITIONS + 1).astype(object)),
        pa.array(np.full(len(ids), round_)),
        pa.array(np.char.mod("%060d", rng.integers(0, 1 << 60, len(ids))).astype(object)),
    ]
    return pa.table(columns, schema=SCHEMA)


class Stream:
    """A table and the protocol of one job that writes into it, directly or sealed."""

    def __init__(self, folder: Path, base: int, *, sealed: bool) -> None:
        self.table = hn.Table.create(
            folder, schema=SCHEMA, record_key="key", partition_by="day", ordering="ts"
        )
        self.table.upsert(rows_of(np.arange(base), 0))
        self.handle, self.sealed, self.previous = open_table(folder), sealed, None
        self.intake = Intake(self.handle.config, self.handle.schema)
        self.protocol = Checkpointing(
            WriteCoordinator(self.handle, EventLog()),
            self.intake,
            Shape(),
            IN_PROCESS,
            interval=Interval(checkpoints=1) if sealed else None,
        )

    def write(self, rows: pa.Table, number: int) -> tuple[float, int]:
        """Write one checkpoint and commit it; return CPU seconds and the bytes of its run."""
        checkpoint = Checkpoint("query", number, f"{number:064d}")
        began, size = time.process_time(), 0
        if self.sealed:
            folder = self.protocol.sealing(checkpoint, self.previous)
            keyed = keyed_in_order(rows, self.intake)
            path = f"{folder}/0.arrow"
            runs = [save_run(self.handle.storage, path, keyed, self.intake.rule)]
            self.protocol.keep(checkpoint, folder, runs, DAYS)
            size = runs[0].size_bytes
        else:
            with self.protocol.running(checkpoint, self.previous) as work:
                keyed = keyed_in_order(rows, self.intake)
                work.statuses = write_in_process(keyed, work.plan, EventLog())
        self.protocol.complete()
        self.previous = checkpoint.fingerprint
        return time.process_time() - began, size


def measure(folder: Path, base: int, batch: int) -> str:
    """Return one line of the table: a batch size, and what both ways cost."""
    streams = {
        name: Stream(folder / name, base, sealed=name == "sealed") for name in ("direct", "sealed")
    }
    spent: dict[str, list[float]] = {name: [] for name in streams}
    rng, size = np.random.default_rng(1), 0
    for number in range(ROUNDS):
        rows = rows_of(rng.choice(base + batch, batch, replace=False), number + 1)
        for name, stream in streams.items():
            seconds, size = stream.write(rows, number)
            spent[name].append(seconds)
    tables = [s.table.to_arrow(meta=False).sort_by("key") for s in streams.values()]
    assert tables[0].equals(tables[1])
    direct, sealed = (statistics.median(spent[name][1:]) for name in ("direct", "sealed"))
    ratio = sealed / direct
    return f"| {batch:,} | {direct:.3f} | {sealed:.3f} | {ratio:.2f} | {size / 1e6:.2f} |"


def main() -> None:
    """Measure three batch sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=int, default=200_000)
    given = parser.parse_args()
    print("| rows | direct, CPU s | sealed, CPU s | ratio | run, MB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for batch in (200, 20_000, 200_000):
            print(measure(Path(folder, str(batch)), given.base, batch), flush=True)


if __name__ == "__main__":
    main()
