"""Many small micro-batches: `python benchmarks/interval.py [--rows 2000000] [--batch 20000]`.

A table of `--rows` rows in 8 days and a stream of 20 micro-batches, half new keys, half updates
that favour recent days, so that each batch touches every day. It runs with one commit per
checkpoint and with `commit_interval=10`, the latter killed with `kill -9` twice: once between two
sealed checkpoints, once while the interval rewrites files. Prints Markdown: bytes written (base
files and sealed runs, also of killed processes) and the ratio; fails if a table is not as expected.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import hoodie_nb as hn
from hoodie_nb.events import Event

DAYS, BATCHES, INTERVAL = 8, 20, 10
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("day", pa.string()),
        ("ts", pa.int64()),
        ("v_d", pa.float64()),
        ("v_i", pa.int32()),
        ("v_text", pa.string()),
    ]
)


# --- input ---------------------------------------------------------------------------------------


def rows_of(ids: np.ndarray, round_: int, seed: int) -> pa.Table:
    """Return a row for each id; a key's day never changes, a later round is newer."""
    rng = np.random.default_rng((seed, round_))
    texts = np.char.add(np.char.mod("%x", rng.integers(1 << 62, size=len(ids))), "-" * 45)
    days = np.char.mod("2024-01-%02d", ids % DAYS + 1)
    columns = [
        pa.array(np.char.mod("k%012d", ids).astype(object), pa.string()),
        pa.array(days.astype(object), pa.string()),
        pa.array(round_ * 1_000_000_000 + rng.integers(0, 1_000_000, len(ids))),
        pa.array(rng.random(len(ids))),
        pa.array(rng.integers(0, 1_000_000, len(ids), dtype=np.int32)),
        pa.array(texts.astype(object), pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def make_input(folder: Path, rows: int, batch: int, seed: int) -> pa.Table:
    """Write the stream's files; return the expected table, sorted by key."""
    rng = np.random.default_rng(seed)
    weights = 1 / (DAYS - np.arange(DAYS)) ** 1.2
    newest = {}  # id → round, the model
    total = rows
    for number in range(1, BATCHES + 1):
        days = rng.choice(DAYS, size=batch // 2, p=weights / weights.sum())
        old = np.unique(rng.integers(0, rows // DAYS, batch // 2) * DAYS + days)
        ids = np.concatenate([old, np.arange(total, total + batch // 2)])
        total += batch // 2
        parquet.write_table(rows_of(ids, number, seed), folder / f"{number:03d}.parquet")
        newest.update(dict.fromkeys(ids.tolist(), number))
    files = [parquet.read_table(folder / f"{n:03d}.parquet") for n in range(1, BATCHES + 1)]
    base = rows_of(np.arange(rows), 0, seed)
    latest = pa.concat_tables([base, *files]).to_pandas().drop_duplicates("key", keep="last")
    assert len(latest) == total and len(newest) < total
    return pa.Table.from_pandas(latest, SCHEMA, preserve_index=False).sort_by("key")


# --- one process of the job ----------------------------------------------------------------------


def live(folder: Path, table: str, interval: int | None) -> None:
    """Run the stream to its end in this process, reporting on stdout what was written."""

    def report(event: Event) -> None:
        if event.kind in ("file_written", "checkpoint_sealed", "batch_ended", "instant_committed"):
            sys.stdout.write(f"{event.kind} {event.values.get('bytes', 0)}\n")  # one write per line
            sys.stdout.flush()

    spark = hn.spark(cores=2)
    stream = spark.readStream.schema(
        "key string, day string, ts long, v_d double, v_i int, v_text string"
    )
    stream = stream.option("maxFilesPerTrigger", 1).parquet(str(folder / "source"))
    job = hn.write_stream(
        stream,
        hn.Table.open(table),
        checkpoint=f"{table}-checkpoint",
        trigger="available_now",
        pipeline="step3",
        placement="executors",
        commit_interval=interval,
    )
    job.events.listen(report)
    job.wait()
    spark.stop()


def run(folder: Path, table: Path, interval: int | None, deaths: list[tuple[str, int]]) -> int:
    """Run processes until one ends normally; return their bytes: commits, seals, lost files.

    A death (kind, n) kills the process after its n-th event of that kind. A start may commit
    earlier seals before it has a listener, so commits are counted in the table.
    """
    command = [sys.executable, __file__, "--live", str(folder), "--table", str(table)]
    command += ["--interval", str(interval or 0)]
    sealed = lost = 0
    for kind, count in [*deaths, ("never", 0)]:
        life = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        seen = unfinished = 0
        assert life.stdout is not None
        for line in life.stdout:
            what, size = line.split()
            sealed += int(size) if what == "checkpoint_sealed" else 0
            unfinished += int(size) if what == "file_written" else 0
            unfinished *= what != "instant_committed"
            seen += what == kind
            if what == kind and seen == count:
                os.killpg(life.pid, signal.SIGKILL)
                break
        life.stdout.close()
        code = life.wait()
        assert (code == 0) == (kind == "never"), f"{kind}: exit {code}"
        lost += unfinished
    commits = hn.Table.open(table).history().iloc[1:]
    print(f"commit_interval={interval}: {len(commits)} commits", file=sys.stderr)
    return int(commits["bytes_written"].sum()) + sealed + lost


def check(table: Path, expected: pa.Table) -> None:
    """Compare a table with the model, and look for leftovers."""
    found = hn.Table.open(table)
    assert found.to_arrow(meta=False).sort_by("key").equals(expected), f"{table} differs"
    assert found.fsck() == []


def main() -> None:
    """Run both, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--live", type=Path)
    parser.add_argument("--table", type=str)
    parser.add_argument("--interval", type=int, default=0)
    args = parser.parse_args()
    if args.live:
        return live(args.live, args.table, args.interval or None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").mkdir()
        expected = make_input(folder / "source", args.rows, args.batch, args.seed)
        written = {}
        deaths = [("checkpoint_sealed", 4), ("file_written", 3)]
        for interval, killed in ((None, []), (INTERVAL, deaths)):
            path = folder / f"every{interval or 1}"
            table = hn.Table.create(
                path, schema=SCHEMA, record_key="key", partition_by="day", ordering="ts"
            )
            table.upsert(rows_of(np.arange(args.rows), 0, args.seed))
            written[interval] = run(folder, path, interval, killed)
            check(path, expected)
    ratio = written[None] / written[INTERVAL]
    print(f"{args.rows:,} rows, {BATCHES} micro-batches of {args.batch:,}\n")
    print("| commit | killed | MB written |\n| --- | --- | --- |")
    print(f"| each checkpoint | never | {written[None] / 1e6:,.0f} |")
    print(f"| each {INTERVAL} | {len(deaths)} times | {written[INTERVAL] / 1e6:,.0f} |")
    print(f"\n{ratio:.1f} times fewer bytes, the same rows, fsck clean")
    assert ratio >= 6, "an interval of ten saves less than it should"


if __name__ == "__main__":
    main()
