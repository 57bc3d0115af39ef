"""The code of the documentation's pages: found, run as it is printed, its output compared."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)

HOW_TO = ROOT / "docs" / "how-to"
WITHOUT_SPARK = ("daily-batch", "from-delta-rs", "privacy")  # tests/test_howto_page.py
WITH_SPARK = ("debezium", "tuning", "watching")  # tests/api/test_howto_spark.py
# what surrounds them is in their tests: a table of Hudi, other processes, a supervisor, a broker
OF_THEIR_OWN = ("backfill", "from-hudi-spark", "kafka", "running")


def blocks(language: str, text: str) -> list[str]:
    """Return the blocks of code in a language."""
    return [code for named, code in _BLOCK.findall(text) if named == language]


def shown(text: str) -> list[tuple[str, str | None]]:
    """Return the blocks of Python, each with the block of text that follows it: its output."""
    return [(found[1], found[2]) for found in _SHOWN.finditer(text)]


def run_page(page: str, names: dict[str, object] | None = None) -> dict[str, object]:
    """Run a page's blocks of Python in order, in this process and folder; return their names.

    Raises AssertionError if a block prints something else than the page shows.
    """
    names = {"__name__": page} if names is None else names
    for number, (code, output) in enumerate(shown((ROOT / page).read_text())):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, f"{page}, block {number}", "exec"), names)
        if output is not None:
            found = printed.getvalue()
            assert found == output, f"{page}, block {number} printed:\n{found}"
    return names
