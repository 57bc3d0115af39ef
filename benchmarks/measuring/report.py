"""What a run of the benchmark leaves: a Markdown table, `results.json` and a picture.

Medians are taken over the batches of all rounds, without each round's first batch, which warms up.
A ratio compares the medians of one round with each other; shown are the median round and, in
brackets, the lowest and the highest.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from hoodie_nb.lab.look import palette

from .arms import DELTA, OURS, RAW, USER, peer_of
from .workload import Shape

_PACKAGES = ("pyarrow", "pyspark", "deltalake", "duckdb", "numpy")
_HEAD = (
    "arm",
    "wall s per batch",
    "spread",
    "CPU s",
    "written / batch",
    "peak MB",
    "wall / raw",
    "CPU / raw",
    "wall / delta-rs tuned",
    "CPU / delta-rs tuned",
    "first load: wall s",
    "CPU s",
    "wall / raw",
    "wall / delta-rs tuned",
)
_COLOURS = {
    "ours": palette.BLUE,
    "raw": palette.GREY,
    "delta-rs": palette.RED,
    "hudi-rs": palette.PURPLE,
    "hudi": palette.GREEN,
}

Costs = Sequence[Sequence[Mapping[str, float]]]


def progress(number: int, name: str, costs: Sequence[Mapping[str, float]]) -> str:
    """Return one line about an arm that has just run."""
    walls = " ".join(f"{cost['wall_s']:.2f}" for cost in costs)
    cpus = " ".join(f"{cost['cpu_s']:.2f}" for cost in costs)
    return f"round {number + 1}, {name}: wall {walls}, CPU {cpus}"


def result(shape: Shape, costs: Mapping[str, Costs], load_before: float) -> dict[str, Any]:
    """Return everything about a run as plain values: sizes, date, machine, costs."""
    return {
        "workload": shape.as_dict(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine() | {"load": [round(load_before, 1), round(os.getloadavg()[0], 1)]},
        "versions": {"python": platform.python_version()} | {p: version(p) for p in _PACKAGES},
        "costs": {name: _rounded(rounds) for name, rounds in costs.items()},
    }


def save(path: Path, new: Mapping[str, Any]) -> None:
    """Put a run into the file, in place of an older one with the same sizes, and draw it."""
    runs = json.loads(path.read_text()) if path.exists() else []
    kept = [run for run in runs if run["workload"] != new["workload"]]
    path.write_text(json.dumps([*kept, new], indent=1) + "\n")
    draw(path.with_name("upserts.svg"), [*kept, new])


def table(run: Mapping[str, Any]) -> str:
    """Return the run as a Markdown table with a line about where it ran."""
    costs, machine = run["costs"], run["machine"]
    names = sorted(costs, key=lambda name: name != USER)  # on top: what one gets without options
    lines = ["| " + " | ".join(_HEAD) + " |", "|---" * len(_HEAD) + "|"]
    lines += ["| " + " | ".join([name, *_cells(name, costs)]) + " |" for name in names]
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    rounds = len(next(iter(costs.values())))
    where = (
        f"{Shape(**run['workload'])}, {rounds} rounds; {run['date']}, {machine['cores']} cores of "
        f"{machine['processor']}, {machine['memory_gb']} GB, load {machine['load'][0]} before and "
        f"{machine['load'][1]} after; {versions}."
    )
    return "\n".join([where, "", *lines])


def _rounded(rounds: Costs) -> list[list[dict[str, float]]]:
    return [[{k: round(v, 3) for k, v in cost.items()} for cost in each] for each in rounds]


def _machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return {
        "cores": os.cpu_count(),
        "processor": (names or [platform.machine()])[0],
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": platform.system(),
    }


# --- the table -----------------------------------------------------------------------------------


def warm(rounds: Costs, what: str) -> list[list[float]]:
    """Return a cost of the batches of each round, without the round's first batch."""
    return [[cost[what] for cost in each[2:] or each[1:]] for each in rounds]


def loads(rounds: Costs, what: str) -> list[list[float]]:
    """Return a cost of each round's first load."""
    return [[each[0][what]] for each in rounds]


def _cells(name: str, costs: Mapping[str, Costs]) -> list[str]:
    own, peer = costs[name], costs.get(peer_of(name))
    walls, cpu, written = (_flat(warm(own, what)) for what in ("wall_s", "cpu_s", "written"))
    peak = max(cost["peak_mb"] for each in own for cost in each[1:])
    middle = median(walls)
    references = [costs.get(RAW), peer]
    return [
        f"{middle:.2f} [{min(walls):.2f}-{max(walls):.2f}]",
        f"{(max(walls) - min(walls)) / middle:.0%}",
        f"{median(cpu):.2f}",
        f"{median(written):.1f}",
        f"{peak:,.0f}",
        *(ratio(own, r, w, warm) for r in references for w in ("wall_s", "cpu_s")),
        f"{median(_flat(loads(own, 'wall_s'))):.2f}",
        f"{median(_flat(loads(own, 'cpu_s'))):.2f}",
        *(ratio(own, reference, "wall_s", loads) for reference in references),
    ]


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [value for each in rounds for value in each]


def ratio(own: Costs, reference: Costs | None, what: str, pick: Any) -> str:
    """Return the median of the rounds' ratios, with its range; nothing without a reference."""
    if reference is None:
        return ""
    pairs = zip(pick(own, what), pick(reference, what), strict=True)
    ratios = [median(ours) / median(theirs) for ours, theirs in pairs]
    span = f" [{min(ratios):.2f}-{max(ratios):.2f}]" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}{span}"


# --- the picture ---------------------------------------------------------------------------------


def draw(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Draw wall and CPU seconds per batch of each arm, one panel per workload."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "upserts"  # equal results give equal files
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    mpl.rcParams["font.size"] = palette.NOTE_PX
    from matplotlib import pyplot as plt

    arms_shown = max(len(run["costs"]) for run in runs)
    size = (9, len(runs) * (0.42 * arms_shown + 1.2))
    figure, axes = plt.subplots(len(runs), squeeze=False, figsize=size, layout="constrained")
    for axis, run in zip(axes[:, 0], runs, strict=True):
        _draw_run(axis, run)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _finding(run: Mapping[str, Any]) -> str:
    """Return how long our upserts take, against those of delta-rs if it ran, and the sizes."""
    ours, peer = (run["costs"].get(name) for name in (OURS, DELTA))
    times = ratio(ours, peer, "wall_s", warm).split() if ours and peer else []
    found = f"An upsert takes {times[0]} times as long as one of {DELTA}" if times else "Upserts"
    return f"{found}:\n{Shape(**run['workload'])}"


def _draw_run(axis: Any, run: Mapping[str, Any]) -> None:
    names = list(run["costs"])
    for row, name in enumerate(names):
        walls, cpu = (_flat(warm(run["costs"][name], what)) for what in ("wall_s", "cpu_s"))
        colour = next(c for start, c in _COLOURS.items() if name.startswith(start))
        axis.barh(row - 0.2, median(walls), 0.38, color=colour)
        axis.hlines(row - 0.2, min(walls), max(walls), color="black", linewidth=1)
        axis.barh(row + 0.2, median(cpu), 0.38, color="white", edgecolor=colour, hatch="///")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("seconds per batch: wall (filled, with its range) and CPU (hatched)")
    axis.set_title(_finding(run))
