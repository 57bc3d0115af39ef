"""The real JupyterLab in a real browser: what a reader sees and clicks."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from . import jupyter

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
LIVE = ("00-tour", "05-mini-batch", "07-failures", "08-race")
WIDGET = re.compile(r"<(?:Dashboard|Replay|IndexView|FaultPanel|Controls|Knob|Compare)\b")
NOTEBOOKS = [name for name in LIVE if (ROOT / "notebooks" / f"{name}.ipynb").exists()]

START = """
import hoodie_nb as hn
spark = hn.spark(cores=2, memory="1g")
table = hn.Table.create("board", schema=hn.flights.SCHEMA, record_key="flight_id",
                        partition_by="flight_date", ordering="event_time", if_exists="replace")
stream = hn.flights.stream(spark, days=60, path="source", disorder=0.2)
"""
WRITE = """
job = hn.write_stream(stream, table, checkpoint="checkpoint", trigger="1 second")
job
"""

END = """
print(f"END {job.status}; drawing took {job._view.follower.cost:.2%} of a core")
"""


def shown_texts(page, selector=".hoodie-frame text"):
    """Return the texts in the pictures."""
    return page.eval_on_selector_all(selector, "all => all.map(one => one.textContent)")


@pytest.mark.spark
def test_a_stream_is_watched_and_stopped(page, address, root, pictures):
    """A job shows its live dashboard; Stop answers within two seconds; nothing jumps or is red."""
    path = jupyter.notebook(root, "watch.ipynb", START, WRITE, "await job", END)
    jupyter.open_and_run(page, address, path)
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-frame svg")
    page.locator(".hoodie-frame").scroll_into_view_if_needed()
    jupyter.wait_for(
        page,
        page.wait_for_function,
        "() => /([3-9]|[12][0-9]) checkpoints/.test(document.querySelector"
        "('.hoodie-frame svg[aria-label*=committed]')?.ariaLabel)",
    )
    page.screenshot(path=pictures / "dashboard-light.png")
    jupyter.theme(page, "JupyterLab Dark")
    page.screenshot(path=pictures / "dashboard-dark.png")
    assert page.evaluate("() => window.hoodie.heights.filter((height) => height)[0]") > 400
    page.evaluate("() => { window.hoodie.heights = []; }")  # a page without a theme has no heights
    answered_ms = jupyter.answered_ms(page, ".hoodie-stop", "^stopp(ing|ed)$")
    assert answered_ms < jupyter.two_seconds_ms()
    jupyter.wait_for(page, page.wait_for_selector, ".jp-OutputArea-output:has-text('END stopped')")
    seen = page.evaluate("() => window.hoodie")
    jupyter.theme(page, "JupyterLab Light")
    page.screenshot(path=pictures / "dashboard-stopped.png")
    cost = page.inner_text(".jp-OutputArea-output:has-text('END stopped')")
    print(f"stop answered in {answered_ms:.0f} ms; {cost}; {seen}")
    assert len(seen["heights"]) == 1, seen
    assert seen["frames"] > 30 and seen["changes"] > 5
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert "stopped" in shown_texts(page)
    assert saved_output(page, path)["text/plain"].startswith("<Dashboard direct: stopped, ")


def saved_output(page, path):
    """Save the notebook and return what its file keeps of the dashboard."""
    before = path.stat().st_mtime_ns
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    outputs = json.loads(path.read_text())["cells"][1]["outputs"]
    assert path.stat().st_mtime_ns > before and len(outputs) == 1
    data = {mime: "".join(text) for mime, text in outputs[0]["data"].items() if "view" not in mime}
    assert base64.b64decode(data["image/png"])[:4] == b"\x89PNG"
    return data


# --- faults --------------------------------------------------------------------------------------

FAULTS = """
panel = hn.FaultPanel(job)
panel
"""


@pytest.mark.spark
def test_a_fault_is_injected_and_its_recovery_is_shown(page, address, root, pictures):
    """A click kills a writer; the panel shows the rollback, the restart and the next commit."""
    write = WRITE.replace('"checkpoint"', '"faulty"').replace("\njob\n", "")
    path = jupyter.notebook(root, "faults.ipynb", START, write, FAULTS, "await job")
    jupyter.open_and_run(page, address, path)
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-frame text:has-text('is committed')")
    button = ".hoodie-fault-kill_writer"
    assert jupyter.answered_ms(page, button, "^Fault: kill_writer") < jupyter.two_seconds_ms()
    jupyter.wait_for(
        page,
        page.wait_for_function,
        "() => { const all = [...document.querySelectorAll('.hoodie-frame text')]"
        ".map((text) => text.textContent); const at = all.findIndex((text) => "
        "text.match('query is restarted')); return at > 0 && all.slice(at).some((text) => "
        "text.match('is committed')); }",
    )
    jupyter.picture(page.locator(".hoodie-frame"), pictures / "faults.png")
    assert any("is rolled back" in text for text in shown_texts(page))


# --- the notebooks themselves --------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_start_to_end(page, address, root, pictures, name):
    """Run All ends without an error or anything red; live widgets are shown, light and dark."""
    committed = ROOT / "notebooks" / f"{name}.ipynb"
    path = jupyter.blank(committed, root)
    jupyter.open_and_run(page, address, path)
    jupyter.wait_for(page, page.wait_for_function, jupyter.ALL_RUN)
    page.screenshot(path=pictures / f"{name}.png")
    for red in ("stderr", "error"):
        assert page.locator(f"[data-mime-type='application/vnd.jupyter.{red}']").count() == 0
    frames = page.locator(".hoodie-frame")
    assert (frames.count() > 0) == bool(WIDGET.search(committed.read_text()))
    for theme in ("Dark", "Light"):
        jupyter.theme(page, f"JupyterLab {theme}")
        for number in range(frames.count()):
            jupyter.picture(frames.nth(number), pictures / f"{name}-{number}-{theme}.png")


# --- views without Spark -------------------------------------------------------------------------

TABLE = """
import hoodie_nb as hn
from hoodie_nb.lab.experiments.race import Generated
made = Generated(rows=6000, batches=3, partitions=5, skew=0.4)
table = hn.Table.create("made", schema=made.config.schema, record_key="id", partition_by="part",
                        ordering="ts", if_exists="replace")
for rows in made.tables():
    table.upsert(rows)
table
"""
VIEWS = ("Timeline(table)", "FileGroups(table)", "BloomView()", "IndexView(table)")
MORE = ("Replay(table.events.records())", "FaultPanel(table.events.records())")


def test_views_are_readable_in_both_themes(page, address, root, pictures):
    """Every view is drawn without Spark; a picture of each is kept in light and in dark."""
    cells = [f"hn.{view}" for view in (*VIEWS, *MORE)]
    path = jupyter.notebook(root, "views.ipynb", TABLE, *cells, "print('THE', 'END')")
    jupyter.open_and_run(page, address, path)
    jupyter.wait_for(page, page.wait_for_selector, ".jp-OutputArea-output:has-text('THE END')")
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        jupyter.theme(page, theme)
        for number, view in enumerate((*VIEWS, *MORE)):
            frame = page.locator(".hoodie-frame").nth(number)
            name = f"{view.partition('(')[0]}-{theme.split()[-1]}.png".lower()
            jupyter.picture(frame, pictures / name)
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert page.locator(".hoodie-frame svg").count() == 5 + 7  # a replay has seven pictures


def test_controls_run_when_asked(page, address, root, pictures):
    """Run answers within two seconds, and after a second run both are shown side by side."""
    cells = ("import hoodie_nb as hn\nhn.Controls(rows=60_000)",)
    path = jupyter.notebook(root, "controls.ipynb", *cells)
    jupyter.open_and_run(page, address, path)
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-run")
    assert jupyter.answered_ms(page, ".hoodie-run", "^New: step3") < jupyter.two_seconds_ms()
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-frame text:has-text('stopped: ')")
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-run:not([disabled])")
    page.locator(".hoodie-frame select").first.select_option("step2")
    assert jupyter.answered_ms(page, ".hoodie-run", "^New: step2") < jupyter.two_seconds_ms()
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-stop-run:not([disabled])")
    page.click(".hoodie-stop-run")
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-run:not([disabled])")
    jupyter.picture(page.locator(".hoodie-frame"), pictures / "controls.png")
    heights = page.evaluate("() => window.hoodie.heights")
    assert len(heights) == 1, heights
    assert "Last: step3" in " ".join(shown_texts(page))


def test_a_knob_shows_its_consequence(page, address, root, pictures):
    """A step of the slider runs the experiment again, and its picture follows."""
    cells = ("import hoodie_nb as hn\nhn.Knob('crash', 'never')",)
    path = jupyter.notebook(root, "knob.ipynb", *cells)
    jupyter.open_and_run(page, address, path)
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-frame text:has-text('No fault yet')")
    page.locator(".hoodie-knob [role=slider]").press("ArrowLeft")
    jupyter.wait_for(page, page.wait_for_selector, ".hoodie-frame text:has-text('Fault: ')")
    jupyter.picture(page.locator(".hoodie-frame"), pictures / "knob.png")
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0


def test_the_workspace_opens_the_tour(page, tmp_path, pictures):
    """JupyterLab opens the tour and its table of contents."""
    (tmp_path / "root" / "notebooks").mkdir(parents=True)
    jupyter.notebook(tmp_path / "root" / "notebooks", "00-tour.ipynb", "1 + 1")
    workspace = ROOT / "binder" / "jupyterlab-workspace.json"
    with jupyter.server(tmp_path, tmp_path / "root", workspace) as address:
        page.goto(address)
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell:has-text('1 + 1')")
        page.wait_for_selector("#table-of-contents", state="visible")
        page.screenshot(path=pictures / "workspace.png")
        page.goto("about:blank")  # a page whose server is gone has errors
