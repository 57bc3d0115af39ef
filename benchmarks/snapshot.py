"""What logs cost and save: `python benchmarks/snapshot.py [--parts reads,appends,groups,growth]`.

| part | what is measured |
| --- | --- |
| reads | `to_arrow()` of a merge-on-read table with 0 to 9 logs per file group, each of updates \
of 5 % of the rows, beside the same rows merged (copy-on-write), in turns; and the read-optimised \
query beside a plain read of the same Parquet files |
| appends | an upsert of 1,000 to 50,000 updates into a million rows, each a log per file group |
| groups | 4,000 updates that touch 1 to 200 of 200 file groups, a log for each |
| growth | an upsert of 20,000 rows into 200,000 to 20,000,000 rows: all updates; half new keys; \
all updates, with files so large that each partition stays one file group. Each size by itself: a \
process keeps the bloom filters of 256 files |

Rows that were read are compared; a wrong one ends the benchmark. Prints Markdown (medians, ratios)
and writes `snapshot.json`, from which `cost_model.py` fits what it says of merge-on-read.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scaling import KEYS, SCHEMA, Costs, Step, half_new, in_turns, medians, rows, timed, upserts

import hoodie_nb as hn

RESULTS = Path(__file__).with_name("snapshot.json")
LOGS = (0, 1, 3, 5, 9)
PARTS = 8  # partitions, each a file group
NEVER = {"hoodie.compact.inline.max.delta.commits": 1000, "hoodie_nb.append.above.bytes": 0}
OWN = {"merge_on_read": NEVER, "copy_on_write": {"hoodie.archive.automatic": False}}
ONE_EACH = {"hoodie.parquet.max.file.size": 2 << 30}  # a partition stays one file group
CHUNK = 1_000_000


def loaded(
    folder: Path,
    size: int,
    parts: int = PARTS,
    kind: str = "merge_on_read",
    more: Mapping[str, object] | None = None,
) -> hn.Table:
    """Return a new table of one commit with ids from 0; `more` options."""
    options = {**OWN[kind], **(more or {})}
    made = hn.Table.create(folder, schema=SCHEMA, **KEYS, table_type=kind, options=options)
    pieces = [
        rows(np.arange(begin, min(size, begin + CHUNK)), parts, 0)
        for begin in range(0, size, CHUNK)
    ]
    made.upsert(pa.concat_tables(pieces))
    return made


def log_files(table: hn.Table) -> list[int]:
    """Return the number of logs of each file group."""
    return [len(piece.logs) for piece in table._handle.file_groups()]


def must(condition: bool, why: str) -> None:
    """End the benchmark if what it measures is not what it says."""
    if not condition:
        raise SystemExit(f"not measured: {why}")


# --- reads ----------------------------------------------------------------------------------------


def sorted_rows(table: pa.Table) -> pa.Table:
    """Return the columns of the data, sorted by key."""
    return table.select(SCHEMA.names).sort_by("key").combine_chunks()


def tables_with_logs(folder: Path, size: int) -> dict[str, hn.Table]:
    """Return tables with the same history: a number of logs each, and one that is merged."""
    rng = np.random.default_rng(1)
    batches = [
        rows(rng.choice(size, size // 20, replace=False), PARTS, number)
        for number in range(1, max(LOGS) + 1)
    ]
    found = {}
    for count in LOGS:
        found[str(count)] = made = loaded(folder / str(count), size)
        for batch in batches[:count]:
            made.upsert(batch)
        must(log_files(made) == [count] * PARTS, f"{count} logs per group: {log_files(made)}")
    found["merged"] = made = loaded(folder / "merged", size, kind="copy_on_write")
    for batch in batches:
        made.upsert(batch)
    most = sorted_rows(found[str(max(LOGS))].to_arrow())
    must(most.equals(sorted_rows(made.to_arrow())), "the snapshots differ")
    return found


def plain(table: hn.Table) -> pa.Table:
    """Read the newest base files with pyarrow, as a reader that knows no logs does."""
    root, groups = Path(table.path), table._handle.file_groups()
    read = [pq.read_table(root / piece.base_path, partitioning=None) for piece in groups]
    return pa.concat_tables(read)


def reads(size: int, rounds: int) -> dict[str, Any]:
    """Return the costs of each read of tables of this size, and the ratios to the merged one."""
    with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
        tables = tables_with_logs(Path(folder), size)
        some = tables["5"]
        steps: dict[str, Step] = {name: each.to_arrow for name, each in tables.items()}
        steps["read-optimised"] = lambda: some.to_arrow(read_optimized=True)
        steps["Parquet"] = lambda: plain(some)
        optimised, files = (sorted_rows(steps[n]()) for n in ("read-optimised", "Parquet"))
        must(optimised.equals(files), "the read-optimised query is not that of the base files")
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for _ in range(rounds + 1):
            for name, step in steps.items():
                taken[name].append(timed(step))
    ratios = {}
    for name, costs in taken.items():
        of = "Parquet" if name in ("read-optimised", "Parquet") else "merged"
        pairs = zip(costs[1:], taken[of][1:], strict=True)
        each = sorted(mine[0] / other[0] for mine, other in pairs)
        ratios[name] = {"to": of, "ratio": median(each), "low": each[0], "high": each[-1]}
    return {name: medians(costs[1:]) | ratios[name] for name, costs in taken.items()}


# --- writes ---------------------------------------------------------------------------------------


def appends(folder: Path) -> dict[int, Iterator[Step]]:
    """Return batches of updates into tables of a million rows."""
    rng, found = np.random.default_rng(1), {}
    for count in (1000, 5000, 20_000, 50_000):
        made = loaded(folder / str(count), 1_000_000)
        ids = lambda n, count=count: rng.choice(1_000_000, count, replace=False)  # noqa: E731
        found[count] = upserts(made, PARTS, ids)
    return found


def groups(folder: Path) -> dict[int, Iterator[Step]]:
    """Return batches of 4,000 updates that touch 1 to 200 of 200 file groups."""
    found = {}
    for count in (1, 10, 50, 200):
        made = loaded(folder / str(count), 1_000_000, 200)
        each = 4000 // count
        ids = (np.arange(each)[:, None] * 200 + np.arange(count)[None, :]).ravel()
        found[count] = upserts(made, 200, lambda n, ids=ids: ids)
    return found


def growth(
    size: int, *, new: bool = False, more: Mapping[str, object] | None = None
) -> Callable[[Path], dict[int, Iterator[Step]]]:
    """Return a maker of batches of 20,000 rows into a table of a size."""

    def ids(number: int) -> np.ndarray:
        rng = np.random.default_rng(number)
        if new:
            return half_new(size, 20_000, number, rng)
        return rng.choice(size, 20_000, replace=False)

    return lambda folder: {size: upserts(loaded(folder / str(size), size, more=more), PARTS, ids)}


def measured(part: str, rounds: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return the costs of a part."""
    if part == "reads":
        return {str(size): reads(size, rounds) for size in (250_000, 1_000_000)}
    makers = {
        "appends": [appends],
        "groups": [groups],
        "growth": [growth(size) for size in sizes],
        "growth, half new": [growth(size, new=True) for size in sizes],
        "growth, 8 file groups": [growth(size, more=ONE_EACH) for size in sizes],
    }
    costs: Costs = {}
    for maker in makers[part]:
        with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
            costs |= in_turns(maker(Path(folder)), rounds)
    return {str(size): cost for size, cost in costs.items()}


# --- report ---------------------------------------------------------------------------------------


def report(part: str, found: dict[str, Any]) -> str:
    """Return a Markdown table of a part."""
    if part == "reads":
        return reads_table(found[max(found, key=int)])
    first = next(iter(found.values()))
    lines = [f"| {part}: rows or groups | CPU ms | ratio | wall ms | ratio |", "|---" * 5 + "|"]
    for size, cost in found.items():
        shown = [f"{cost[n]:,.0f} | {cost[n] / first[n]:.2f}" for n in ("cpu_ms", "wall_ms")]
        lines.append(f"| {int(size):,} | {shown[0]} | {shown[1]} |")
    return "\n".join(lines)


def reads_table(found: dict[str, Any]) -> str:
    """Return the table of reads of one size."""
    lines = ["| read | wall ms | CPU ms | compared with | wall, ratio | CPU, ratio |"]
    lines.append("|---" * 6 + "|")
    for name, cost in found.items():
        label = f"{name} logs per file group" if name.isdigit() else name
        shown = f"{cost['ratio']:.2f} [{cost['low']:.2f}-{cost['high']:.2f}]"
        times = f"{cost['wall_ms']:,.0f} | {cost['cpu_ms']:,.0f}"
        cpu = cost["cpu_ms"] / found[cost["to"]]["cpu_ms"]
        lines.append(f"| {label} | {times} | {cost['to']} | {shown} | {cpu:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="reads,appends,groups,growth")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", type=int, default=20_000_000, help="rows of the largest table")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    wanted = asked.parts.split(",")
    wanted += ["growth, half new", "growth, 8 file groups"] if "growth" in wanted else []
    sizes = tuple(size for size in (200_000, 2_000_000, 20_000_000) if size <= asked.to)
    for part in wanted:
        found = measured(part, asked.rounds, sizes)
        print(f"\n{report(part, found)}", flush=True)
        saved = json.loads(asked.results.read_text()) if asked.results.exists() else {}
        saved[part] = found
        saved["date"] = datetime.now(UTC).date().isoformat()
        asked.results.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
