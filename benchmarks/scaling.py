"""How the cost of an upsert in one process grows: `python benchmarks/scaling.py [--laws batch]`.

| law | what grows | what stays |
| --- | --- | --- |
| base | the rows of the table, all in files that the batch touches | 20,000 rows, half updates |
| partitions | the partitions of the table | 1,000 rows into one of them, 2,000 rows in each |
| groups | the file groups that the batch touches | 4,000 updates, 200 groups of 5,000 rows |
| batch | the rows of the batch, half updates | 1,000,000 rows in eight days |
| timeline | the commits before, empty, not archived | one row |

The sizes of a law take turns, so that a busy machine slows all of them. Prints Markdown: medians of
CPU and wall time, and the ratio of each size to the first; writes `scaling.json` and `scaling.svg`.
`--profile LAW` prints where the largest size of a law spends its time.
"""

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import hoodie_nb as hn
from hoodie_nb.clock import instant_ms, instant_time
from hoodie_nb.lab.look import palette
from hoodie_nb.timeline.commits import encode_commit

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("part", pa.string()),
        ("ts", pa.int64()),
        ("v_d", pa.float64()),
        ("v_i", pa.int32()),
        ("v_text", pa.string()),
    ]
)
KEYS = {"record_key": "key", "partition_by": "part", "ordering": "ts"}
KEEP = {"hoodie.archive.automatic": False, "hoodie.clean.automatic": False}
ROUNDS = 5

Step = Callable[[], object]
Costs = dict[int, dict[str, float]]


def rows(ids: np.ndarray, parts: int, ts: int) -> pa.Table:
    """Return a row per id; its partition is the id modulo `parts`."""
    rng = np.random.default_rng((len(ids), ts))
    texts = np.char.add(np.char.mod("%x", rng.integers(1 << 62, size=len(ids))), "-" * 30)
    columns = [
        pa.array(np.char.mod("k%012d", ids).astype(object), pa.string()),
        pa.array(np.char.mod("p%04d", ids % parts).astype(object), pa.string()),
        pa.repeat(pa.scalar(ts), len(ids)),
        pa.array(rng.random(len(ids))),
        pa.array(rng.integers(0, 1_000_000, len(ids), dtype=np.int32)),
        pa.array(texts.astype(object), pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def table(folder: Path, ids: np.ndarray, parts: int) -> hn.Table:
    """Return a new table with these rows."""
    made = hn.Table.create(folder, schema=SCHEMA, **KEYS, options=KEEP)
    made.insert(rows(ids, parts, 0))
    return made


def half_new(size: int, count: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """Return ids of a batch: half of them are in a table of `size` rows, the others never were."""
    old = rng.choice(size, count // 2, replace=False)
    start = 100_000_000 + number * count
    return np.concatenate([old, np.arange(start, start + count - len(old))])


# --- the laws: each yields its sizes with an endless series of upserts ---------------------------


def upserts(made: hn.Table, parts: int, ids: Callable[[int], np.ndarray]) -> Iterator[Step]:
    """Yield one upsert after the other, each of a batch made beforehand."""
    for number in range(1, 1_000_000):
        batch = rows(ids(number), parts, number)
        yield lambda batch=batch: made.upsert(batch)


def base(folder: Path) -> dict[int, Iterator[Step]]:
    """Return tables of 200,000 to 5,000,000 rows."""
    rng, found = np.random.default_rng(1), {}
    for size in (200_000, 1_000_000, 5_000_000):
        made = table(folder / str(size), np.arange(size), 8)
        found[size] = upserts(made, 8, lambda n, size=size: half_new(size, 20_000, n, rng))
    return found


def partitions(folder: Path) -> dict[int, Iterator[Step]]:
    """Return tables of 1 to 1,000 partitions; each batch touches one."""
    found = {}
    for count in (1, 10, 100, 1000):
        made = table(folder / str(count), np.arange(2000 * count), count)
        found[count] = upserts(made, count, lambda n, count=count: np.arange(1000) * count)
    return found


def groups(folder: Path) -> dict[int, Iterator[Step]]:
    """Return batches that touch 1 to 200 of 200 file groups."""
    made = table(folder / "table", np.arange(1_000_000), 200)
    found = {}
    for count in (1, 10, 50, 200):
        each = 4000 // count
        ids = (np.arange(each)[:, None] * 200 + np.arange(count)[None, :]).ravel()
        found[count] = upserts(made, 200, lambda n, ids=ids: ids)
    return found


def batch(folder: Path) -> dict[int, Iterator[Step]]:
    """Return batches of 1,000 to 1,000,000 rows into tables of a million."""
    rng, found = np.random.default_rng(1), {}
    for count in (1000, 10_000, 100_000, 1_000_000):
        made = table(folder / str(count), np.arange(1_000_000), 8)
        found[count] = upserts(made, 8, lambda n, count=count: half_new(1_000_000, count, n, rng))
    return found


def timeline(folder: Path) -> dict[int, Iterator[Step]]:
    """Return tables with 10 to 5,000 commits; all but the first are empty and older."""
    found = {}
    for count in (10, 100, 1000, 5000):
        made = table(folder / str(count), np.arange(50), 3)
        first = instant_ms(made.timeline()["requested_time"].iloc[0])
        for age in range(1, count):
            commit_empty(Path(made.path, ".hoodie"), instant_time(first - 1000 * age))
        found[count] = upserts(made, 3, lambda number: np.array([number % 50]))
    return found


def commit_empty(folder: Path, time17: str) -> None:
    """Put a commit without files on a timeline."""
    for state in ("commit.requested", "inflight"):
        (folder / f"{time17}.{state}").touch()
    (folder / f"{time17}.commit").write_bytes(encode_commit(time17, [], "upsert", {}))


LAWS: Mapping[str, Any] = {
    "base": (base, "rows of the table"),
    "partitions": (partitions, "partitions of the table"),
    "groups": (groups, "file groups touched"),
    "batch": (batch, "rows of the batch"),
    "timeline": (timeline, "commits before"),
}


# --- measuring -----------------------------------------------------------------------------------


def timed(step: Step) -> tuple[float, float]:
    """Run a step; return its wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


def medians(taken: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the medians of wall and CPU milliseconds."""
    walls, cpus = zip(*taken, strict=True)
    return {"wall_ms": round(1000 * median(walls), 1), "cpu_ms": round(1000 * median(cpus), 1)}


def in_turns(sizes: Mapping[int, Iterator[Step]], rounds: int) -> Costs:
    """Run one upsert of each size per round; the first round warms up."""
    taken: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    for _ in range(rounds + 1):
        for size, steps in sizes.items():
            taken[size].append(timed(next(steps)))
    return {size: medians(costs[1:]) for size, costs in taken.items()}


def measure(law: str, rounds: int) -> Costs:
    """Return the costs of each size of a law."""
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        return in_turns(LAWS[law][0](Path(name)), rounds)


def profile(law: str, lines: int = 15) -> None:
    """Print the profile of three upserts of the largest size of a law."""
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        steps = list(LAWS[law][0](Path(name)).values())[-1]
        next(steps)()
        batches = [next(steps) for _ in range(3)]
        with cProfile.Profile() as profiler:
            for step in batches:
                step()
    for order in ("tottime", "cumtime"):
        pstats.Stats(profiler).sort_stats(order).print_stats(lines)


# --- report --------------------------------------------------------------------------------------


def report(law: str, costs: Costs) -> str:
    """Return a Markdown table of a law."""
    first = next(iter(costs.values()))
    lines = [f"| {LAWS[law][1]} | CPU ms | ratio | wall ms | ratio |", "|---" * 5 + "|"]
    for size, cost in costs.items():
        ratios = {name: cost[name] / first[name] for name in cost}
        shown = [f"{cost[n]:,.0f} | {ratios[n]:.2f}" for n in ("cpu_ms", "wall_ms")]
        lines.append(f"| {size:,} | {shown[0]} | {shown[1]} |")
    return "\n".join(lines)


def draw(path: Path, laws: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Draw a panel per law."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "scaling"
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    mpl.rcParams["font.size"] = palette.NOTE_PX
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    figure, axes = plt.subplots(
        1, len(laws), figsize=(3.6 * len(laws), 3.4), layout="constrained", squeeze=False
    )
    for axis, (law, costs) in zip(axes[0], laws.items(), strict=True):
        sizes = [int(size) for size in costs]
        for what, style, colour in (
            ("cpu_ms", "o-", palette.BLUE),
            ("wall_ms", "s--", palette.RED),
        ):
            label = {"cpu_ms": "CPU time", "wall_ms": "wall time"}[what]
            ms = [cost[what] for cost in costs.values()]
            axis.plot(sizes, ms, style, color=colour, label=label)
        first, *_, last = costs.values()
        growth = last["cpu_ms"] / first["cpu_ms"]
        axis.set(xscale="log", yscale="log", xlabel=LAWS[law][1], ylabel="milliseconds per upsert")
        times = f"{max(sizes) / min(sizes):,.0f} times the {LAWS[law][1]}"
        axis.set_title(f"{times}:\n{growth:.1f} times the CPU time", fontsize=palette.TEXT_PX)
        axis.set_xticks(sizes)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for each in (axis.xaxis, axis.yaxis):
            each.set_major_formatter(EngFormatter(sep=""))  # 10k, without small exponents
            each.set_minor_formatter(NullFormatter())
        axis.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--laws", default=",".join(LAWS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("scaling.json"))
    parser.add_argument("--profile", choices=list(LAWS))
    asked = parser.parse_args()
    if asked.profile:
        return profile(asked.profile)
    for law in asked.laws.split(","):
        costs = measure(law, asked.rounds)
        print(f"\n{report(law, costs)}", flush=True)
        save(asked.results, law, costs)


def save(path: Path, law: str, costs: Costs) -> None:
    """Put the costs of a law into the file, with today's date, and draw all its laws."""
    laws = json.loads(path.read_text()) if path.exists() else {}
    sizes = {str(size): cost for size, cost in costs.items()}
    laws[law] = {"date": datetime.now(UTC).date().isoformat(), "sizes": sizes}
    laws = {name: laws[name] for name in LAWS if name in laws}
    path.write_text(json.dumps(laws, indent=1) + "\n")
    draw(path.with_suffix(".svg"), {name: each["sizes"] for name, each in laws.items()})


if __name__ == "__main__":
    main()
