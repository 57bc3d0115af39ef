"""The real JupyterLab in a real browser: what a reader sees and clicks."""

from __future__ import annotations

import base64
import json

import pytest

from . import jupyter

pytestmark = [pytest.mark.browser, pytest.mark.spark, pytest.mark.timeout(600)]

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


def shown(page, selector=".hoodie-frame text"):
    """Return the texts in the pictures."""
    return page.eval_on_selector_all(selector, "all => all.map(one => one.textContent)")


def test_a_stream_is_watched_and_stopped(page, address, root, pictures):
    """A job shows its live dashboard; Stop answers within two seconds; nothing jumps or is red."""
    path = jupyter.notebook(root, "watch.ipynb", START, WRITE, "await job", END)
    page.goto(f"{address}/tree/{path.name}")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    page.evaluate(jupyter.FRAMES)
    jupyter.run_all(page)
    page.wait_for_selector(".hoodie-frame svg")
    page.locator(".hoodie-frame").scroll_into_view_if_needed()
    page.wait_for_function(
        "() => /[3-9] checkpoints/.test(document.querySelector"
        "('.hoodie-frame svg[aria-label*=committed]')?.ariaLabel)"
    )
    page.screenshot(path=pictures / "dashboard-light.png")
    jupyter.theme(page, "JupyterLab Dark")
    page.screenshot(path=pictures / "dashboard-dark.png")
    assert page.evaluate("() => window.hoodie.heights.filter((height) => height)[0]") > 400
    page.evaluate("() => { window.hoodie.heights = []; }")  # a page without a theme has no heights
    answered_ms = page.evaluate(jupyter.ANSWER, ".hoodie-stop")
    assert answered_ms < 2000
    page.wait_for_selector(".jp-OutputArea-output:has-text('END stopped')")
    seen = page.evaluate("() => window.hoodie")
    jupyter.theme(page, "JupyterLab Light")
    page.screenshot(path=pictures / "dashboard-stopped.png")
    cost = page.inner_text(".jp-OutputArea-output:has-text('END stopped')")
    print(f"stop answered in {answered_ms:.0f} ms; {cost}; {seen}")
    assert len(seen["heights"]) == 1, seen
    assert seen["frames"] > 30 and seen["changes"] > 5
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert "stopped" in shown(page)
    assert kept(page, path)["text/plain"].startswith("<Dashboard step3: stopped, ")


def kept(page, path):
    """Save the notebook and return what its file keeps of the dashboard."""
    before = path.stat().st_mtime_ns
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    outputs = json.loads(path.read_text())["cells"][1]["outputs"]
    assert path.stat().st_mtime_ns > before and len(outputs) == 1
    data = {mime: "".join(text) for mime, text in outputs[0]["data"].items() if "view" not in mime}
    assert base64.b64decode(data["image/png"])[:4] == b"\x89PNG"
    return data
