"""docs/commands.md lists the commands and options that the command line has."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from hoodie_nb.__main__ import parser

PAGE = (Path(__file__).parents[1] / "docs" / "commands.md").read_text()


def commands() -> dict[str, set[str]]:
    """Return the commands of the parser with their options."""
    actions = parser()._actions
    (found,) = (a.choices for a in actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: {o for a in each._actions for o in a.option_strings if o not in ("-h", "--help")}
        for name, each in found.items()
    }


def test_the_page_lists_each_command_with_its_options():
    """Each command has a row, in the order of --help, with exactly its options."""
    rows = re.findall(r"^\| `hoodie-nb (\w+).*$", PAGE, re.MULTILINE)
    assert rows == list(commands())
    for line in PAGE.splitlines():
        if found := re.match(r"\| `hoodie-nb (\w+)", line):
            assert {*re.findall(r"--[\w-]+", line)} == commands()[found[1]], line


def test_the_installed_command_is_the_module():
    """The command that installing creates prints what `python -m hoodie_nb` prints."""
    installed = Path(sysconfig.get_path("scripts")) / "hoodie-nb"
    module = [sys.executable, "-m", "hoodie_nb", "--version"]
    asked = (subprocess.check_output(c, text=True) for c in ([installed, "--version"], module))
    assert len({*asked}) == 1
