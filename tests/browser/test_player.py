"""The player's page in a real browser, from a file: keyboard, light and dark, hostile names."""

from __future__ import annotations

import pytest
from runs import make_events

import hoodie_nb as hn
from hoodie_nb.lab.player.page import page as page_of
from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.run.run_state import RunState

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
EVIL = '</script><script>hacked = 1</script><!-- <img src=x onerror="hacked=1"> & {{script}}'
STOPS = ["theme", "begin", "back", "play", "next", "end", "time", "speed"]
FOCUSED = """() => {
  const style = getComputedStyle(document.activeElement);
  return [document.activeElement.id, style.outlineStyle, parseFloat(style.outlineWidth)];
}"""
SMALLEST = """() => Math.min(...[...document.querySelectorAll('body *')]
  .filter((one) => one.checkVisibility() && [...one.childNodes].some((node) => node.data?.trim()))
  .map((one) => {
    const {a, b} = one.ownerSVGElement ? one.getScreenCTM() : {a: 1, b: 0};
    return parseFloat(getComputedStyle(one).fontSize) * Math.hypot(a, b);
  })).toFixed(2)"""
GO = """(ms) => {
  const time = document.getElementById('time');
  time.value = ms;
  time.dispatchEvent(new Event('input'));
}"""
FACTS = """() => Object.fromEntries([...document.querySelectorAll('dl div')]
  .map((pair) => [...pair.children].map((one) => one.textContent)))"""


def opened(page, tmp_path, events):
    """Save a run, open its page from the file; return the page and what its console says."""
    path = tmp_path / "run.html"
    hn.Replay(events).save(path)
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: said.append(request.url))
    page.goto(path.as_uri())
    return path.as_uri(), said


def events_of(name="step3"):
    """Return the events of a recording, in the order of their times."""
    return sorted(recordings.recorded(name), key=lambda event: event.at_ms)


def test_the_keyboard_alone_reaches_and_does_everything(page, tmp_path):
    """Tab stops at each control, with a visible frame; space, arrows, Home and End move the run."""
    events = events_of()
    address, said = opened(page, tmp_path, events)

    def state():
        return page.get_attribute("#time", "aria-valuetext")

    assert state().startswith("61.9 of 61.9 seconds, step 395 of 395: ")  # as it ended
    for stop in STOPS:
        page.keyboard.press("Tab")
        name, outline, wide = page.evaluate(FOCUSED)
        assert (name, outline) == (stop, "solid") and wide >= 3
    page.locator("#time").focus()
    page.keyboard.press("Home")
    assert state() == "0.0 of 61.9 seconds, step 1 of 395: The query starts"
    for key in ("ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    assert "step 3 of 395: Instant 20261121093937637 is requested" in state()
    page.keyboard.press("ArrowLeft")
    assert "step 2 of 395: Batch 0 begins" in state()
    assert page.text_content("#now") == "Batch 0 begins"
    page.keyboard.press("Space")
    assert page.text_content("#play") == "Pause"
    page.wait_for_function("() => Number(document.getElementById('time').value) > 1000")
    page.keyboard.press("Space")
    paused = state()
    assert page.text_content("#play") == "Play" and not paused.startswith("61.9")
    page.keyboard.press("End")
    assert state().startswith("61.9")
    page.locator("#speed").focus()
    page.keyboard.press("End")  # in the list of speeds
    assert page.input_value("#speed") == "256"
    page.locator("#play").focus()
    page.keyboard.press("Space")  # from the start again, a minute in a quarter of a second
    page.wait_for_function("() => document.getElementById('play').textContent === 'Play'")
    assert state().startswith("61.9")
    assert said == [address]  # nothing else is loaded, no message in the console


def test_the_page_shows_the_state_at_any_time(page, tmp_path):
    """At thirty moments, forward and backward, the figures are those of the run's state."""
    events = events_of()
    opened(page, tmp_path, events)
    times = [event.at_ms - events[0].at_ms for event in events[:: len(events) // 15]]
    for ms in [*times, *reversed(times)]:
        page.evaluate(GO, ms)
        state = RunState.of(event for event in events if event.at_ms <= events[0].at_ms + ms)
        facts = page.evaluate(FACTS)
        assert facts["Status"] == state.status
        assert facts["Rows committed"] == f"{state.rows:,}"
        assert facts["Commits"] == f"{state.committed}"
        alternative = page.get_attribute("#instants", "aria-label")
        for checkpoint in state.checkpoints:
            assert f"checkpoint {checkpoint.number} is {checkpoint.state}" in alternative
        for bucket in state.buffers.shown:
            assert bucket.file_id in page.get_attribute("#buckets", "aria-label")
    page.keyboard.press("End")
    notes = page.locator("#notes li")
    assert "Fault: kill_writer" in notes.first.inner_text()
    assert "rolled back" in " ".join(notes.all_inner_texts())


@pytest.mark.parametrize("wide", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_are_readable(page, tmp_path, pictures, axe, theme, wide):
    """No barrier is found by axe-core, no text is below 11 px, nothing is wider than the window."""
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": wide, "height": 1000})
    opened(page, tmp_path, events_of())
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[theme]
    page.evaluate(axe)
    for ms in (0, 13_000, 39_900, 61_900):
        page.evaluate(GO, ms)
        found = page.evaluate("() => axe.run()")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
        assert float(page.evaluate(SMALLEST)) >= 11
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=pictures / f"player-{theme}-{wide}.png", full_page=True)
    page.click("#theme")
    other = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert other != paper
    page.click("#theme")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == paper


def test_hostile_names_are_text(page, tmp_path):
    """A partition named like markup is shown as it is, and runs nothing."""
    level = {"task": 0, "bytes": 5, "buckets": [[EVIL, EVIL, 5]]}
    written = {"partition": EVIL, "file_id": EVIL, "bytes": 5, "rows": EVIL}
    failed = {"why": EVIL, "error": "InvalidInput"}
    started = ["job_started", {"pipeline": EVIL}, "batch_started", {"batch": 0}]
    asked = ["instant_requested", {"instant": EVIL}]
    names = ["buffer_level", level, "file_written", written]
    events = make_events(*started, *asked, *names, "job_failed", failed)
    address, said = opened(page, tmp_path, events)
    for count, shown in enumerate(
        ["The query starts", "Batch 0 begins", EVIL, "Task 0", EVIL, EVIL]
    ):
        page.evaluate(GO, 100 * count)
        assert shown in page.text_content("#now")
    assert EVIL in page.title()
    for picture in ("buckets", "instants"):
        assert EVIL in page.get_attribute(f"#{picture}", "aria-label")
        assert EVIL in " ".join(page.locator(f"#{picture} title").all_text_contents())
    assert EVIL in page.inner_text("#trouble")
    assert page.evaluate("() => window.hacked") is None
    assert said == [address]


def test_the_policy_stops_a_foreign_script(page, tmp_path):
    """A script that somebody puts into the file does not run: the policy knows the page's own."""
    path = tmp_path / "run.html"
    text = page_of(events_of())
    path.write_text(text.replace("</body>", "<script>hacked = 1</script></body>"), "utf-8")
    page.goto(path.as_uri())
    assert page.evaluate("() => window.hacked") is None
    assert page.text_content("#clock") == "61.9 of 61.9 s"
