"""The player's page: what it holds, that it needs nothing else, how long runs are thinned out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import accumulate

import pytest
from runs import long_run, make_events, recorded

import hoodie_nb as hn
from hoodie_nb.events import Event, EventLog
from hoodie_nb.lab.draw.instants import SHOWN
from hoodie_nb.lab.player.page import MOST_BYTES, page
from hoodie_nb.lab.player.steps import SENTENCES, Run, applied
from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.run.run_parts import STEP_MS, noted
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.replay import Replay

EVIL = '</script><script>hacked = 1</script><!-- <img src=x onerror="hacked=1"> & \u2028 {{script}}'
VOID = {"meta", "input"}
SVG = "http://www.w3.org/2000/svg"


class Document(HTMLParser):
    """A page's elements, and the text of each kind; unbalanced tags fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.texts, self.elements = [], {}, []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data


def data_of(text: str) -> dict:
    """Return the JSON of a page."""
    return json.loads(Document(text).texts["script"][0])


def evil_events() -> list[Event]:
    """Return the events of a bucket whose partition, file id and error are hostile."""
    level = {"task": 0, "bytes": 5, "buckets": [[EVIL, EVIL, 5]]}
    written = {"partition": EVIL, "file_id": EVIL, "bytes": 5, "rows": EVIL, EVIL: EVIL}
    failed = {"why": EVIL, "error": "InvalidInput"}
    names = ["buffer_level", level, "file_written", written, "what_is_this", written]
    started = ["job_started", {"pipeline": EVIL}, "instant_requested", {"instant": EVIL}]
    return make_events(*started, *names, "job_failed", failed)


# --- one file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [recorded()[:1], recorded(), long_run(), evil_events()])
def test_a_page_is_one_well_formed_file_that_loads_nothing(events):
    """Its tags are balanced; no attribute or text names another file, the script loads none."""
    text = page(events)
    document = Document(text)
    assert {*re.findall(r"https?://[^'\"\s<]*", text)} == {SVG}  # a name, never loaded
    names = {name for _, attributes in document.elements for name in attributes}
    assert not names & {"src", "href", "srcset", "action", "data", "style"}
    assert not any(name.startswith("on") for name in names)
    for word in ("fetch(", "import", "innerHTML", "url(http", "XMLHttpRequest", "eval("):
        assert word not in document.texts["script"][1] + document.texts["style"][0]


def test_the_policy_allows_the_pages_own_script_and_style_only():
    """The hashes in the content security policy are those of the script and the style."""
    document = Document(page(recorded()))
    (policy,) = (a["content"] for _, a in document.elements if "http-equiv" in a)
    allowed = dict(rule.split(" ", 1) for rule in policy.split("; "))
    texts = {"script-src": document.texts["script"][1], "style-src": document.texts["style"][0]}
    for name, text in texts.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert allowed.pop(name) == f"'sha256-{digest}'"
    assert set(allowed) == {"default-src", "base-uri", "form-action"}
    assert set(allowed.values()) == {"'none'"}


def test_names_of_users_cannot_leave_their_place():
    """A partition named like markup ends no element; the JSON has it as it is."""
    text = page(evil_events())
    document = Document(text)
    assert [tag for tag, _ in document.elements].count("script") == 2
    assert not any(tag == "img" for tag, _ in document.elements)
    data = data_of(text)
    assert data["names"] == [[EVIL, EVIL]]
    assert data["steps"][-1][2] == [[3, f"The job has failed: {EVIL}"]]
    assert document.texts["h1"] == document.texts["title"]
    assert document.texts["title"][0].startswith(f"Pipeline {EVIL}: 0 rows")
    assert re.search("[<>&\u2028]", document.texts["script"][0]) is None


# --- the steps -----------------------------------------------------------------------------------


def shown_by(state: RunState) -> dict:
    """Return what a dashboard's pictures read from a state, by the names of a step's values."""
    columns = state.checkpoints[-SHOWN:]
    return {
        "status": state.status,
        "rows": state.rows,
        "commits": state.committed,
        "level": round(sum(state.buffers.levels.values())),
        "count": len(state.buffers.buckets),
        "checkpoints": [
            (c.number, c.state, [i.time, i.state, *i.at_ms] if i else [])
            for c in columns
            for i in [state.instants.get(c.instant)]
        ],
        "buckets": {
            (b.partition, b.file_id): [round(b.bytes), b.flushes, round(b.written), int(b.is_log)]
            for b in sorted(state.buffers.buckets.values(), key=lambda b: (b.partition, b.file_id))[
                :16
            ]
        },
        "trouble": state.trouble and [state.trouble.what, state.trouble.fix],
    }


def columns_of(shown: dict, states: list[str]) -> list[tuple]:
    """Return number, state, and instant with its states, of the newest checkpoints."""
    columns = [*shown["checkpoints"].values()][-SHOWN:]
    return [
        (number, states[state], [*time, *(states[place] for place in reached)])
        for number, state, *rest in columns
        for time, reached in [(rest[:1], rest[1:])]
    ]


@pytest.mark.parametrize("name", [*recordings.names(), "in one process"])
def test_each_step_is_the_state_that_a_dashboard_draws(name):
    """After every step the page's values are those of `RunState` after the same events."""
    events = recorded() if name == "in one process" else recordings.recorded(name)
    events = sorted(events, key=lambda event: event.at_ms)
    data, state, shown, taken = data_of(page(events)), RunState(), {}, 0
    for at_ms, count, _, _, changes in data["steps"]:
        state.take(events[taken : taken + count])
        taken += count
        shown = applied(shown, changes)
        known = {**shown, "checkpoints": columns_of(shown, data["states"])}
        known["buckets"] = {
            tuple(data["names"][int(n)]): [*values, 0, 0, 0, 0][:4]
            for n, values in shown["buckets"].items()
        }
        wanted = shown_by(state)
        assert {name: known[name] for name in wanted} == wanted
        assert at_ms == events[taken - 1].at_ms - events[0].at_ms
    assert taken == len(events) == data["events"]


def test_the_notes_of_the_steps_are_those_of_the_run():
    """Every note of a run is in its step, and the last fault is found by its number."""
    events = sorted(recordings.recorded("step3"), key=lambda event: event.at_ms)
    state, wanted = RunState(), []
    for event in events:
        note = noted(event, state.instants)
        wanted += [note.text] if note else []
        state.take([event])
    run = Run.of(events)
    assert [text for step in run.steps for _, text in step.notes] == wanted
    stories = [step.changes["story"] for step in run.steps if step.changes.get("story")]
    fault, first = stories[-1]
    assert wanted[fault] == state.stories[-1].fault.text
    assert wanted[first] == state.stories[-1].after[0].text


def test_a_step_without_a_note_has_a_sentence():
    """It names the most important event of the step, with the values of that event."""
    events = make_events(
        "buffer_level",
        {"task": 1, "bytes": 7.26},
        "buffer_flushed",
        {"partition": "p", "file_id": "0123456789", "rows": 5},
        "table_moved",
        {"to": "x"},
        every_ms=0,
    )
    said = [Run.of(events[:count]).steps[0].said for count in (1, 2, 3)]
    assert said == [
        ["buffer_level", 1, 7.3],
        ["buffer_flushed", "p", "01234567", 5],
        ["", "Table moved: to x"],
    ]
    for kind in SENTENCES:
        assert Run.of(make_events(kind or "x", {})).steps[0].events == 1  # values may be missing


def test_the_curve_has_all_rows():
    """Rows per second, over the whole run, add up to the rows that reached the writers."""
    run = Run.of(recorded())
    assert sum(run.rates) * STEP_MS / 1000 == pytest.approx(run.state.written.total)
    assert run.state.written.total > 0 and run.rates_ms <= 0
    long = data_of(page(make_events(*_hours())))["rates"]
    assert len(long["values"]) <= 400
    seconds = long["step_ms"] / 1000
    assert sum(long["values"]) * seconds == pytest.approx(3600 * 10, rel=0.01)


def _hours() -> list[object]:
    """Return two hours in which a writer gets ten rows each second of the first one."""
    made: list[object] = []
    for n in range(1, 72_001):
        if n % 100 == 0:
            rows = min(n, 36_000)
            made += ["operator_progress", {"operator": "BucketWriter", "task": 0, "rows": rows}]
        else:
            made += ["batch_placed", {"batch": 0}]
    return made


# --- long runs -----------------------------------------------------------------------------------


def test_a_page_of_a_hundred_checkpoints_is_small():
    """A hundred checkpoints, with sixteen buckets each, are less than 300 KB."""
    events = long_run(1000)
    text = page(events)
    assert sum(event.kind == "batch_started" for event in events) == 100
    assert len(text.encode()) < 300_000
    assert re.search(r"[\d,]+ events in [\d,]+ steps\.", text)  # nothing is thinned out


def test_a_long_run_is_thinned_out_and_says_so():
    """Four thousand checkpoints are fewer steps on a page of bounded size, with the same end."""
    events = long_run(40_000)
    text = page(events)
    data = data_of(text)
    assert len(text.encode()) < MOST_BYTES + 50_000 and len(data["steps"]) > 100
    (slot,) = re.findall(r"events in [\d,]+ steps: a step has all events of ([\d.]+) s", text)
    times = [step[0] // (1000 * float(slot)) for step in data["steps"]]
    assert len({*times}) == len(times) == len(data["steps"])
    *_, end = accumulate((step[4] for step in data["steps"]), applied, initial={})
    state = RunState.of(events)
    assert (end["rows"], end["commits"]) == (state.rows, state.committed)
    assert sum(step[1] for step in data["steps"]) == len(events)


# --- what a reader sees --------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Return the relative luminance of `#rrggbb`, as WCAG defines it."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_is_readable_in_both_themes():
    """Text has a contrast of at least 4.5 to what is below it, edges of marks at least 3."""
    style = Document(page(recorded())).texts["style"][0]
    themes = re.findall(r"color-scheme: \w+;\s+(--ink.*?)\}", style, re.DOTALL)
    themes = [" ".join(theme.split()) for theme in themes]
    assert len(themes) == 3 and len({*themes}) == 2  # dark is there by request, and by the system
    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", theme))
        for ink, paper, least in [
            *((ink, paper, 4.5) for ink in ("ink", "faint") for paper in ("paper", "shade")),
            *((name, "paper", 3) for name in ("line", "rows", "file")),
        ]:
            one, two = sorted(luminance(colours[name]) for name in (ink, paper))
            assert (two + 0.05) / (one + 0.05) >= least, (ink, paper)
    assert min(int(size) for size in re.findall(r"font(?:-size)?: (\d+)px", style)) >= 11


# --- saving --------------------------------------------------------------------------------------


class Job:
    """A job as far as a replay knows one."""

    def __init__(self, events):
        self.events = EventLog()
        for event in events:
            self.events.add(event)


@pytest.mark.parametrize("form", [list, Job, lambda events: Job(events).events])
def test_a_replay_saves_its_page(tmp_path, form):
    """The page of a job, of its log and of its events is the same, and names the run."""
    replay = hn.Replay(form(recorded()))
    assert isinstance(replay, Replay)
    path = tmp_path / "run.html"
    replay.save(path)
    text = path.read_text("utf-8")
    assert text == page(sorted(recorded(), key=lambda event: event.at_ms), "step3")
    title = "Pipeline step3: 4,000 rows in 3 commits, in "
    assert Document(text).texts["h1"][0].startswith(title)
