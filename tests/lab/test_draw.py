"""Pictures of a run: what is drawn for which events, even if events are missing."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from runs import long_run, make_events, recorded

from hoodie_nb.buckets.pipelines import PIPELINES
from hoodie_nb.lab.draw import buffers, diagram, index, instants, lanes, progress, recovery
from hoodie_nb.lab.look.palette import PURPLE, RED
from hoodie_nb.lab.look.still import png
from hoodie_nb.lab.look.svg import STATES, mark, picture, text
from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.run.run_state import RunState

DRAWN = {
    "head": progress.head,
    "throughput": progress.throughput,
    "trouble": progress.trouble,
    "diagram": diagram.diagram,
    "buffers": buffers.buffers,
    "instants": instants.strip,
    "index": index.lookups,
    "lanes": lanes.lanes,
    "recovery": recovery.recovery,
}
TIME = "20261121080000000"


def parsed(svg: str) -> ElementTree.Element:
    """Return the picture as a tree, its names without their namespace."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def texts(svg: str) -> list[str]:
    """Return the text of the picture's elements, titles included."""
    return ["".join(e.itertext()) for e in parsed(svg).iter() if e.tag in ("text", "title")]


def checkpoint(number: int, *states: str, time17: str = TIME) -> list[object]:
    """Return the events of a checkpoint whose instant reaches the last of these states."""
    made: list[object] = ["batch_started", {"batch": number}]
    for state in states:
        made += [f"instant_{state}", {"instant": time17, "checkpoint": 0, "inserts": 5}]
    return made


# --- every picture -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("events", [[], make_events("job_started", {}), recorded()[:1], recorded()])
def test_a_picture_is_well_formed_and_has_a_label(name, events):
    """With no event, one event or many, the picture is XML and has a label."""
    root = parsed(DRAWN[name](RunState.of(events)))
    assert root.tag == "svg" and root.get("aria-label")
    assert float(root.get("height")) == float(root.get("viewBox").split()[3])


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_keeps_its_height(name):
    """The height does not change during a run, so that nothing below the picture jumps."""
    heights = set()
    state = RunState("step3")
    for event in recorded():
        state.take([event])
        heights.add(parsed(DRAWN[name](state)).get("height"))
    assert len(heights) == 1


@pytest.mark.parametrize("pipeline", recordings.names())
@pytest.mark.parametrize("name", DRAWN)
def test_the_shipped_recordings_are_drawn(name, pipeline):
    """Every picture can be drawn from every recording, and its operators are the pipeline's."""
    state = RunState.of(recordings.recorded(pipeline))
    parsed(DRAWN[name](state))
    assert state.pipeline == pipeline and state.status == "stopped"
    assert state.written.total > 0 and state.committed > 0


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_holds_no_more_than_it_can_show(name):
    """A picture of a thousand events has a bounded size."""
    most = 50_000 if name == "lanes" else 20_000
    assert len(DRAWN[name](RunState.of(long_run()))) < most


def test_names_are_escaped():
    """A partition with a name like markup is shown as text."""
    evil = '<script x="1">&'
    level = {"task": 0, "bytes": 5, "buckets": [[evil, "id", 5]]}
    why = {"why": evil, "error": "InvalidInput"}
    state = RunState.of(make_events("buffer_level", level, "job_failed", why))
    assert any(evil in text for text in texts(buffers.buffers(state)))
    assert any(evil in text for text in texts(progress.trouble(state)))


@pytest.mark.parametrize("name", DRAWN)
def test_values_may_be_missing(name):
    """The events of older recordings lack values; everything is drawn without them."""
    kinds = {event.kind for event in [*recorded(), *long_run(100)]}
    bare = [item for kind in [*kinds, "index_saved", "instant_redone"] for item in (kind, {})]
    parsed(DRAWN[name](RunState.of(make_events(*bare))))


def test_folding_and_drawing_are_cheap():
    """A thousand events are folded and drawn without quadratic work."""
    events, began = long_run(), time.thread_time()
    state = RunState.of(events)
    for draw in DRAWN.values():
        draw(state)
    assert time.thread_time() - began < 1  # it takes about 10 ms


# --- what they say -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PIPELINES)
def test_the_diagram_has_the_pipelines_operators(name):
    """Every operator of the pipeline is in its diagram, in order."""
    shown = " ".join(texts(diagram.diagram(RunState(name))))
    operators = PIPELINES[name].operators
    row = [shown.index(o.name) for o in operators if o.parallelism != "driver"]
    assert all(operator.name in shown for operator in operators)
    assert row == sorted(row)


def test_the_diagram_shows_where_the_newest_batch_is_written():
    """On the driver `direct` has no tasks and looks keys up in one place."""
    here, there = ({"batch": n, "placement": p} for n, p in enumerate(("driver", "executors")))
    state = RunState("direct").take(make_events("batch_placed", here))
    shown = texts(diagram.diagram(state))
    assert "FileIdAssigner (driver)" in shown and "BucketWriter (driver)" in shown
    shown = texts(diagram.diagram(state.take(make_events("batch_placed", there))))
    assert "KeyRouter x n" in shown and "FileIdAssigner (driver)" not in shown


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(("index", "placement"), [("", ""), ("bloom+state", "driver")])
def test_the_diagram_does_not_cut_its_text(name, index, placement):
    """Every text of a box is shown whole, within the box, in the widest font that is used."""
    ran = {"rows": 1_234_567, "seconds": 9.0, "operator": "FileIdAssigner"}
    state = RunState.of(make_events("operator_ran", {**ran, "task": 15}))
    state.pipeline, state.index, state.placement = name, index, placement
    root = parsed(diagram.diagram(state))
    shown = " ".join(texts(diagram.diagram(state)))
    drawn = replace(PIPELINES[name], index=index or PIPELINES[name].index)
    for operator in replace(drawn, routed=drawn.routed and not placement).operators:
        assert all(word in shown for word in operator.does.split())
    boxes = [(float(r.get("x")), float(r.get("width"))) for r in root.iter("rect") if r.get("rx")]
    for element in [e for e in root.iter("text") if e.get("text-anchor") != "middle"]:
        begin, end = extent(element)
        if float(element.get("y")) > 58 or float(element.get("y")) < 30:
            assert any(x <= begin and end <= x + wide for x, wide in boxes), element.text
    assert "…" not in shown


def extent(element):
    """Return where a text begins and ends, measured in matplotlib's font."""
    font = FontProperties(family="DejaVu Sans", weight=element.get("font-weight", "normal"))
    drawn = TextPath((0, 0), element.text, size=float(element.get("font-size")), prop=font)
    wide, x = drawn.get_extents().width, float(element.get("x"))
    return (x - wide, x) if element.get("text-anchor") == "end" else (x, x + wide)


def test_the_lanes_show_when_a_checkpoint_waits():
    """Each task has its lane, with files, flushes and the time that the checkpoint waits."""
    ran = {"operator": "BucketWriter", "task": 1, "rows": 5, "seconds": 0.3, "blocked_seconds": 0.1}
    wrote = {"task": 1, "partition": "p", "file_id": "f", "seconds": 0.1}
    kinds = ["job_started", {}, "buffer_flushed", wrote, "file_written", wrote, "operator_ran", ran]
    svg = lanes.lanes(RunState.of(make_events(*kinds, "job_stopped", {})))
    assert {"task 1", "BucketWriter, 300 ms", "file, 100 ms", "flush, 100 ms"} <= {*texts(svg)}
    assert [r.get("fill") for r in parsed(svg).iter("rect")].count(RED) == 1
    faint = [float(r.get("fill-opacity", 1)) for r in parsed(svg).iter("rect")]
    assert min(faint) >= 0.5  # a bar is also seen on a dark page


def test_the_diagram_shows_the_rows_of_each_task():
    """A skewed shuffle is visible in the bars of a box: one task has most rows, the other few."""
    rows = {"operator": "BucketWriter", "seconds": 1.0}
    ran = [{**rows, "task": 0, "rows": 900}, {**rows, "task": 1, "rows": 100}]
    shown = texts(
        diagram.diagram(RunState.of(make_events("operator_ran", ran[0], "operator_ran", ran[1])))
    )
    assert "task 0: 900 rows in this batch" in shown and "task 1: 100 rows in this batch" in shown


def test_progress_and_end_of_an_operator_count_its_rows_once():
    """Rows reported while a task ran are not counted again when it ends."""
    values = {"operator": "BucketWriter", "task": 0}
    events = make_events(
        *("operator_progress", {**values, "rows": 40}, "operator_progress", {**values, "rows": 70}),
        *("operator_ran", {**values, "rows": 100, "seconds": 0.3}),
        *("operator_ran", {**values, "rows": 100, "seconds": 0.1}),
    )
    state = RunState.of(events)
    assert state.written.total == 200
    assert sum(state.written.steps.values()) == pytest.approx(200)


def test_the_rate_grows_from_the_left_and_then_moves():
    """In the first 30 seconds the picture begins at the start of the run."""
    state = RunState.of(make_events("job_started", {}, begin_ms=1_000_000))
    state.now_ms = 1_010_000
    assert progress.window(state) == 1_000_000
    state.now_ms = 1_050_000
    assert progress.window(state) == 1_020_000


def test_each_bucket_has_its_bar_and_its_flushes():
    """Up to sixteen of the buffer's buckets are drawn, each with its number of flushes."""
    many = [["p", f"id-{n:02d}", 10] for n in range(20)]
    flushed = {"partition": "p", "file_id": "id-03", "bytes": 10}
    level = {"task": 0, "bytes": 200, "limit_bytes": 400, "buckets": many}
    events = make_events(
        "buffer_level", level, "buffer_flushed", flushed, "buffer_flushed", flushed
    )
    svg = buffers.buffers(RunState.of(events))
    assert len([e for e in parsed(svg).iter("rect")]) == 16
    assert {"20 buckets, 16 shown", "number: how often it was flushed"} <= {*texts(svg)}
    assert any("id-03: 0 B buffered, 2 flushes" in text for text in texts(svg))
    assert any("limit of 1 task: 400 B" in text for text in texts(svg))


def test_a_bucket_has_a_tick_for_each_log_until_a_base_file_folds_them():
    """Logs add up over the checkpoints; the base file that merges them says how many there were."""
    group = {"partition": "p", "file_id": "id", "rows": 1, "bytes": 10, "seconds": 0.1}
    log = {**group, "log": True, "merged_logs": 0}
    base = {**group, "log": False, "merged_logs": 3}
    events = []
    for number in range(3):
        events += make_events("batch_started", {"batch": number}, "file_written", log)
        svg = buffers.buffers(RunState.of(events))
        assert svg.count(f'fill="{PURPLE}"') == number + 1
        assert any("log of 10 B" in text for text in texts(svg))
        assert "purple, below: a log of its file group" in texts(svg)
    events += make_events("batch_started", {"batch": 3}, "file_written", base)
    svg = buffers.buffers(RunState.of(events))
    assert PURPLE not in svg
    assert any("file of 10 B, merged with 3 logs" in text for text in texts(svg))


@pytest.mark.parametrize(
    ("ends", "shape"),
    [
        (("requested",), "ring"),
        (("requested", "inflight"), "triangle"),
        (("requested", "inflight", "prepared"), "square"),
        (("requested", "inflight", "prepared", "committed"), "disc"),
        (("requested", "inflight", "rolled_back"), "cross"),
    ],
)
def test_a_state_has_its_shape_and_its_colour(ends, shape):
    """The state of an instant is shown twice: by shape and by colour."""
    state = RunState.of(make_events(*checkpoint(0, *ends)))
    name = state.instants[TIME].state
    assert STATES[name][0] == shape
    plain = mark(shape, 84, 0, fill=STATES[name][1])
    kind, fill = parsed(f"<g>{plain}</g>")[0].tag, STATES[name][1]
    found = [e for e in parsed(instants.strip(state)).iter(kind) if fill in e.attrib.values()]
    assert found and any(name in t for t in texts(instants.strip(state)))
    assert len({colour for _, colour in STATES.values()}) >= len(STATES) - 1


def test_an_instant_spans_all_its_checkpoints():
    """After a lost notification two checkpoints share one instant, and the strip shows it once."""
    state = RunState.of(recorded())
    held = [c.instant for c in state.checkpoints]
    assert held[1] == held[2] and len(set(held)) == 3
    assert state.committed == 3
    assert [c.state for c in state.checkpoints] == ["done"] * 4


def test_sealed_checkpoints_join_the_instant_of_their_interval():
    """Checkpoints that are only sealed have no instant until the interval ends."""
    sealed = ["checkpoint_sealed", {"batch": 0}, "checkpoint_sealed", {"batch": 1}]
    state = RunState.of(make_events(*sealed))
    assert [c.state for c in state.checkpoints] == ["sealed", "sealed"]
    ends = ("requested", "inflight", "prepared", "committed")
    state = RunState.of(make_events(*sealed, *checkpoint(9, *ends)[2:]))
    assert [(c.state, c.instant) for c in state.checkpoints] == [("done", TIME)] * 2


def test_the_age_of_the_oldest_sealed_row_grows_until_its_commit():
    """The curve rises from each seal, falls to the next one's age, and the picture names it."""
    events = []
    for number in range(60):  # more than there are columns
        events += ["checkpoint_sealed", {"batch": number}]
    events += checkpoint(60, "requested", "inflight", "prepared")[2:]
    events += ["checkpoint_sealed", {"batch": 60}, "instant_committed", {"instant": TIME}]
    made = make_events(*events)
    state = RunState.of(made[:-1])
    oldest = (made[-2].at_ms - made[0].at_ms) / 1000
    assert oldest > 0 and state.backlog.age(state.now_ms) == oldest
    state.take(made[-1:])
    assert list(state.backlog.sealed) == [60]
    assert state.backlog.age(state.now_ms) == (made[-1].at_ms - made[-2].at_ms) / 1000
    assert state.backlog.peak == (made[-1].at_ms - made[0].at_ms) / 1000
    caption = f"at most {state.backlog.peak:.1f} s"
    assert any(caption in text for text in texts(progress.throughput(state)))
    assert not any("oldest" in text for text in texts(progress.throughput(RunState.of(recorded()))))


def test_a_batch_that_runs_again_is_a_new_column():
    """A rolled back attempt stays on the strip next to its replacement."""
    again = "20261121080000001"
    ends = ("requested", "inflight", "prepared", "committed")
    failed = checkpoint(3, "requested", "inflight", "rolled_back")
    state = RunState.of(make_events(*failed, *checkpoint(3, *ends, time17=again)))
    assert [(c.number, c.state) for c in state.checkpoints] == [(3, "rolled back"), (3, "done")]


def test_the_index_shares_sum_up_to_the_keys():
    """Every key is answered in exactly one of the four ways."""
    asked = {"keys": 100, "state_hits": 30, "candidates": 50, "false_positives": 5, "found": 75}
    found = index.shares(RunState.of(make_events("index_looked_up", asked)).lookups[0])
    assert found == {"state": 30, "ruled out": 20, "read": 45, "false positive": 5}


def test_pure_state_is_shown_with_its_start():
    """The first save of a pure state is kept until the state is no longer pure."""
    save = [{"instant": str(n), "pure": n in (2, 3)} for n in range(5)]
    kinds = [item for values in save for item in ("index_saved", values)]
    assert RunState.of(make_events(*kinds[:8])).pure_since == "2"
    assert RunState.of(make_events(*kinds)).pure_since == ""


@pytest.mark.parametrize("name", ["InvalidInput", "WriteFailed", "ConcurrentWriter"])
def test_an_error_is_shown_with_its_fix(name):
    """A failed job says why and what to do about that kind of error."""
    state = RunState.of(make_events("job_failed", {"why": "column x is bad", "error": name}))
    assert state.status == "failed" and state.trouble.fix
    shown = " ".join(texts(progress.trouble(state)))
    assert "column x is bad" in shown and state.trouble.fix in shown


def test_settling_an_instant_again_counts_it_once():
    """`instant_committed` may be sent twice; rows and commits are counted once."""
    twice = checkpoint(0, "requested", "inflight", "prepared", "committed", "committed")
    state = RunState.of(make_events(*twice))
    assert (state.rows, state.committed) == (5, 1)


# --- the still picture ---------------------------------------------------------------------------


def test_a_png_has_the_size_of_its_pictures():
    """The still picture is a PNG of the same proportions, and small enough for a notebook."""
    state = RunState.of(recorded())
    made = png([(0, 0, progress.head(state)), (0, 50, diagram.diagram(state))], 960, 200)
    assert made[:8] == b"\x89PNG\r\n\x1a\n" and len(made) < 200_000
    width, height = struct.unpack(">II", made[16:24])
    assert width / height == pytest.approx(960 / 200, rel=0.01)


def test_a_still_shows_text_literally():
    """Dollar signs and markup in a name are shown literally in the still picture."""
    assert png([(0, 0, picture(20, [text(1, 12, "a$b$ <&> c")], label="x"))], 100, 20)
