"""Write the pages that play recorded runs: `python docs/site/run_pages.py FOLDER`.

`tour.html` and `failure.html` play recordings that ship with the package, of real streams;
`race.html` shows two pages side by side, of pipelines that write the same rows. A page is one file
that needs neither a kernel nor a network. `--record` runs the race again (two minutes).
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from pathlib import Path
from string import Template

from hoodie_nb.events import Event, EventLog
from hoodie_nb.lab.experiments.race import Generated
from hoodie_nb.lab.experiments.trial import Trial
from hoodie_nb.lab.look.palette import DARK, LIGHT
from hoodie_nb.lab.player.page import save_page
from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.stores.slow_storage import Link

SHIPPED = {"tour": "direct", "failure": "step3"}
RACERS = ("step1", "step2")
RECORDED = Path(__file__).parent / "recorded"
INPUT = Generated(rows=6000, batches=3, partitions=4, skew=0.6)  # one partition has most rows
STORE = Link(latency_s=0.01, bytes_per_s=200_000)
FILES = {  # small files, so that a partition has several
    "hoodie.parquet.max.file.size": 50_000,
    "hoodie.copyonwrite.record.size.estimate": 100,
    "hoodie.parquet.small.file.limit": 0,
}


def main() -> int:
    """Write the pages, or record the race."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/site/runs"))
    parser.add_argument("--record", action="store_true", help="run the race, write no page")
    asked = parser.parse_args()
    if asked.record:
        record()
    else:
        write(asked.folder)
    return 0


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, run in SHIPPED.items():
        save_page(folder / f"{name}.html", recordings.recorded(run), run)
    runs = {name: recordings.load(RECORDED / f"{name}.jsonl.gz") for name in RACERS}
    for name, events in runs.items():
        save_page(folder / f"race-{name}.html", events, name)
    (folder / "race.html").write_text(race(runs), "utf-8")


def race(runs: dict[str, list[Event]]) -> str:
    """Return the page that shows two runs side by side; its title says which is faster."""
    seconds = {name: (events[-1].at_ms - events[0].at_ms) / 1000 for name, events in runs.items()}
    fast, slow = sorted(seconds, key=lambda name: seconds[name])
    rows = {RunState.of(events).rows for events in runs.values()}
    if len(rows) > 1:
        raise ValueError(f"the runs have different rows: {rows}")
    title = (
        f"{fast} needs {seconds[fast]:.1f} s for the rows that take {slow} {seconds[slow]:.1f} s"
    )
    about = (
        f"{rows.pop():,} rows, most of one partition, four writers, the same simulated store. In "
        "step1 one writer gets all rows of a partition, and the others wait for it; in step2 the "
        "rows go by file id, so that all four write. Press Play in each."
    )
    frames = "\n".join(
        f'<iframe src="race-{name}.html" title="The run of {escape(name)}"></iframe>'
        for name in runs
    )
    dark = {f"dark_{name}": colour for name, colour in DARK.items()}
    words = {"title": escape(title), "about": escape(about), "frames": frames}
    text = Path(__file__).with_name("race.html").read_text("utf-8")
    return Template(text).substitute(words | LIGHT | dark)


def record() -> None:
    """Run both pipelines on the same rows, and keep their events."""
    RECORDED.mkdir(exist_ok=True)
    for name in RACERS:
        logs: list[EventLog] = []
        trial = Trial(name, "bloom+state", writers=4, input=INPUT, store=STORE, options=FILES)
        trial.run(lambda log, _, logs=logs: logs.append(log))
        events = sorted(logs[0].records(), key=lambda event: event.at_ms)
        recordings.save(
            events, RECORDED / f"{name}.jsonl.gz", {"pipeline": name, "run": str(trial)}
        )


if __name__ == "__main__":
    sys.exit(main())
