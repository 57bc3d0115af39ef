"""Print the lowest version of each package that pyproject.toml declares, one requirement a line.

A package without a lower bound is printed without a version. Linters are left out: no test uses
them, and `make check` needs the versions of constraints.txt.
"""

import re
import tomllib
from pathlib import Path

LINTERS = {"ruff", "mypy"}


def declared(project: dict) -> list[str]:
    """Return the requirements of the package and of all its extras, each once."""
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return [line for each in lists for line in each if not line.startswith(project["name"])]


def lowest(requirement: str) -> str:
    """Return `pyarrow==18` for `pyarrow>=18`, and a requirement without `>=` unchanged."""
    return re.sub(r">=([\w.]+).*", r"==\1", requirement.replace(" ", ""))


if __name__ == "__main__":
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for line in declared(tomllib.loads(text)["project"]):
        if re.match(r"[\w.-]+", line)[0] not in LINTERS:
            print(lowest(line))
