"""The committed notebooks are complete and executed, without errors or local paths."""

from __future__ import annotations

import ast
import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
VIEW = "application/vnd.jupyter.widget-view+json"
ABSOLUTE = re.compile(r"(?<![\w.:/~<])/(?:home|root|Users|tmp|var|usr|opt|work|private|mnt)/\w")
SMALL = 200_000
ALLOWED = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    """Return a committed notebook as stored in its file."""
    return json.loads(request.param.read_text())


def code(notebook):
    """Return the code cells that are not empty."""
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    return [c for c in cells if "".join(c["source"]).strip()]


def outputs(notebook):
    """Return all outputs."""
    return [output for cell in code(notebook) for output in cell["outputs"]]


def test_it_was_executed_from_top_to_bottom(notebook):
    """Every code cell has run, once, in order, in one kernel."""
    counts = [cell["execution_count"] for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_it_shows_no_error_and_nothing_red(notebook):
    """No cell failed, and none wrote to stderr."""
    bad = [o for o in outputs(notebook) if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert bad == []


def test_it_contains_no_path_of_the_machine_it_ran_on(notebook):
    """Neither cells nor outputs contain an absolute path."""
    texts = ["".join(cell["source"]) for cell in notebook["cells"]]
    for output in outputs(notebook):
        data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
        texts.append(json.dumps([data, output.get("text", "")]))
    assert [found[0] for text in texts for found in ABSOLUTE.finditer(text)] == []


def test_it_stores_pictures_instead_of_widgets(notebook):
    """Widgets leave a picture and text: their state would be blank or stale for a reader."""
    assert "widgets" not in notebook["metadata"]
    for output in outputs(notebook):
        data = output.get("data", {})
        assert VIEW not in data
        shown = "".join(data.get("text/plain", ""))
        if re.match(r"<(Dashboard|Replay|IndexView|FaultPanel|Controls|Knob|Compare)\b", shown):
            assert "image/png" in data, shown


def test_its_solutions_move_no_picture_above_them(notebook):
    """Run All also runs the folded solutions, which show what they move in their own output."""
    shown = set()
    for cell in code(notebook):
        source = "".join(cell["source"])
        named = re.findall(r"^(\w+) = hn\.(?:Replay|FileGroups|BloomView|Knob)\(", source, re.M)
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            moved = re.findall(r"\b(\w+)\.(?:go|step|back|ask|turn|play|refresh)\(", source)
            assert not shown & {*moved} and not shown & {*named}
        shown |= {*named}


def test_its_pictures_are_small(notebook):
    """At least one picture, a diagram or a table is shown; a PNG has at most 200 KB."""
    pictures = [
        o["data"]["image/png"] for o in outputs(notebook) if "image/png" in o.get("data", {})
    ]
    for picture in pictures:
        assert len(base64.b64decode("".join(picture))) <= SMALL
    rich = [o for o in outputs(notebook) if set(o.get("data", {})) & {"text/html", "image/png"}]
    assert rich or any("image/svg+xml" in o.get("data", {}) for o in outputs(notebook))


def test_it_is_short_and_begins_with_prose(notebook):
    """At most 40 cells, the first of which says what the notebook is about."""
    assert len(notebook["cells"]) <= 40
    assert notebook["cells"][0]["cell_type"] == "markdown"


def statements(notebook):
    """Yield the text and the syntax tree of each code cell, without magics."""
    for cell in code(notebook):
        lines = "".join(cell["source"]).splitlines()
        text = "\n".join(line for line in lines if not line.startswith("%"))
        yield text, compile(text, "cell", "exec", ALLOWED, dont_inherit=True)


def test_a_line_of_code_fits_and_has_one_statement(notebook):
    """A line has at most 88 columns, and each statement a line of its own."""
    for text, tree in statements(notebook):
        assert [line for line in text.splitlines() if len(line) > 88] == []
        found = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        assert len(found) == len({*found}), text


def test_it_shows_what_a_reader_would_type(notebook):
    """No assert, no environment variable, and of the library only its two lists of names."""
    for text, tree in statements(notebook):
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), text
        assert "environ" not in text and "HOODIE_NB_" not in text
        modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert {m for m in modules if m and m.startswith("hoodie_nb")} <= {"hoodie_nb"}
        assert {name.id for name in ast.walk(tree) if is_private(name)} == set()


def is_private(node):
    """Return whether a name begins with an underscore."""
    return isinstance(node, ast.Name) and node.id.startswith("_") and node.id != "_"


def test_it_says_to_which_part_of_the_course_it_belongs(notebook):
    """00 to 07 teach the RFC, 08 to 13 use the table."""
    parts = {f"Part {part} of the course" for part in ("one", "two")}
    first = "".join(notebook["cells"][0]["source"])
    assert sum(part in first for part in parts) == 1


# --- where notebooks are opened ------------------------------------------------------------------


def test_the_workspace_opens_the_tour():
    """`make lab` and Binder open JupyterLab on the first notebook."""
    workspace = json.loads((ROOT / "binder" / "jupyterlab-workspace.json").read_text())
    opened = workspace["data"]["layout-restorer:data"]["main"]["current"]
    assert opened == "notebook:notebooks/00-tour.ipynb"
    assert workspace["data"][opened]["data"]["path"] == "notebooks/00-tour.ipynb"
    for name in ("Makefile", "binder/postBuild"):
        assert "workspaces import binder/jupyterlab-workspace.json" in (ROOT / name).read_text()


def test_jupyterlab_does_not_ask_about_its_news(tmp_path):
    """The question would cover the widgets; JupyterLab's server takes the settings as valid."""
    server = pytest.importorskip("jupyterlab_server.settings_utils")
    shutil.copy(ROOT / "binder" / "overrides.json", tmp_path)
    schemas = str(Path(sys.prefix, "share", "jupyter", "lab", "schemas"))
    name = "@jupyterlab/apputils-extension:notification"
    found, _ = server.get_settings(str(tmp_path), schemas, str(tmp_path), schema_name=name)
    asks = found["schema"]["properties"]["fetchNews"]
    assert asks["default"] == "false" and any(way["const"] == "false" for way in asks["oneOf"])
    for script in ("Makefile", "binder/postBuild"):
        text = (ROOT / script).read_text()
        assert re.search(r"cp binder/overrides.json \S*settings", text), script


def test_binder_builds_from_its_own_folder():
    """Repo2docker renders an image with our Python, our environment and our postBuild."""
    pytest.importorskip("repo2docker")
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug", str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    text = result.stdout + result.stderr
    assert "conda environment for python=3.12" in text
    assert '--file "binder/environment.yml"' in text and "RUN ./binder/postBuild" in text
