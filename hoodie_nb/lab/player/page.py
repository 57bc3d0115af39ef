"""The page of a recorded run: one HTML file that plays it, with all that it needs inside.

*Work flow.* `page` puts the steps of a run, as JSON, into `page.html`, with the style `page.css`
and the script `page.js`, which draws them. The page loads nothing: its content security policy
allows its own script and style, known by their hashes, and nothing else.

*Semantics.* Names of partitions and keys come from users. In the JSON, `<`, `>` and `&` are
escaped, so that none can end the element; the script sets text, never HTML.

**Caveats.** The JSON has at most `MOST_BYTES`: a longer run has longer time slots, and says so.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from hoodie_nb.display import counted
from hoodie_nb.events import Event
from hoodie_nb.lab.look import palette
from hoodie_nb.lab.player.steps import SENTENCES, STATES, Run
from hoodie_nb.lab.run.run_parts import STEP_MS

MOST_BYTES = 256 << 10  # of the JSON
_POINTS = 400  # of the curve of rows per second
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
_FOLDER = Path(__file__).parent


def save_page(path: Path, events: Iterable[Event], pipeline: str = "") -> None:
    """Write the page of events, at least one, in any order."""
    ordered = sorted(events, key=lambda event: event.at_ms)
    path.write_text(page(ordered, pipeline), "utf-8")


def page(events: Sequence[Event], pipeline: str = "") -> str:
    """Return the page of events, at least one, in the order of their times."""
    run = Run.of(events, pipeline)
    text = _json(run, events)
    while len(text) > MOST_BYTES and len(run.steps) > 1:
        fewer = len(run.steps) * MOST_BYTES // len(text)
        run = Run.of(events, pipeline, max(1, min(fewer, len(run.steps) - 1)))
        text = _json(run, events)
    script = (_FOLDER / "page.js").read_text("utf-8")
    themes = {"light": _variables(palette.LIGHT), "dark": _variables(palette.DARK)}
    style = _filled("page.css", themes)
    policy = f"script-src {_hash(script)}; style-src {_hash(style)}"
    parts = {
        "policy": f"default-src 'none'; {policy}; base-uri 'none'; form-action 'none'",
        "title": escape(_title(run, events)),
        "about": escape(_about(run, events)),
        "style": style,
        "script": script,
        "run": text,
    }
    return _filled("page.html", parts)


def _filled(name: str, parts: Mapping[str, str]) -> str:
    text = (_FOLDER / name).read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], text)


def _variables(theme: Mapping[str, str]) -> str:
    """Return the variables of a theme: its own, and the colours of what is drawn."""
    tones = {"held": palette.AMBER, "good": palette.GREEN, "bad": palette.RED}
    colours = {**theme, **tones, **dict.fromkeys(("rows", "file"), theme["blue"])}
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def _title(run: Run, events: Sequence[Event]) -> str:
    """Return what is seen, in a sentence."""
    state = run.state
    undone = sum(event.kind == "instant_rolled_back" for event in events)
    parts = [f"{counted(state.rows, 'row')} in {counted(state.committed, 'commit')}"]
    parts += [f"{counted(undone, 'instant')} rolled back"] if undone else []
    parts += ["the job has failed"] if state.status == "failed" else []
    seconds = (events[-1].at_ms - events[0].at_ms) / 1000
    return f"Pipeline {state.pipeline or 'unknown'}: {', '.join(parts)}, in {seconds:,.1f} s"


def _about(run: Run, events: Sequence[Event]) -> str:
    began = datetime.fromtimestamp(events[0].at_ms / 1000, UTC)
    shown = f"{counted(len(events), 'event')} in {counted(len(run.steps), 'step')}"
    if run.slot_ms > 1:
        shown += f": a step has all events of {run.slot_ms / 1000:g} s, to keep this page small"
    return f"A recorded run of {began:%Y-%m-%d %H:%M:%S} UTC, {shown}."


def _json(run: Run, events: Sequence[Event]) -> str:
    data: dict[str, Any] = {
        "duration_ms": events[-1].at_ms - events[0].at_ms,
        "events": len(events),
        "sentences": SENTENCES,
        "states": STATES,
        "names": list(run.names),
        "steps": [[s.at_ms, s.events, s.notes, s.said, s.changes] for s in run.steps],
        "rates": _curve(run),
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return re.sub("[<>&\u2028\u2029]", lambda found: _ESCAPES[found[0]], text)


def _curve(run: Run) -> dict[str, Any]:
    """Return the rates, means of several where there are too many for a curve."""
    each = -(-len(run.rates) // _POINTS)
    groups = [run.rates[n : n + each] for n in range(0, len(run.rates), each)]
    means = [round(sum(group) / each, 1) for group in groups]
    return {"begin_ms": run.rates_ms, "step_ms": each * STEP_MS, "values": means}


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
