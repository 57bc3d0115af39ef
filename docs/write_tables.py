"""Write the generated pages of docs: `python docs/write_tables.py [--check]`.

`tests/facts/NAME.toml` is the source of `docs/NAME.md`, one line for each row, so that the facts
are beside the tests that prove them. `title` and `intro` open the page; each table of the file is a
section, with these keys (`tests_shown = false` leaves the tests out of a page for users):

| key | what |
| --- | --- |
| `text` | Markdown above the section's table |
| `head` | the names of the columns; by default those of the page |
| `code` | the first column is code; by default as for the page |
| any other | a row: the first column = the others, of which the last may be several tests |

A test is `tests/file.py::test_name[case] (note)`, a scenario `folder/name`. The codes of `fsck`,
the commands and Hudi's options come from the library, with what the file says of each.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "tests" / "facts"
_SETTINGS = ("text", "head", "code")
_TEST = re.compile(r"(tests/[\w/]+\.py(?:::test_\w+)?)(?:\[(.+)\])?( \(.+\))?")
_SCENARIO = re.compile(r"[a-z]+/[a-z0-9_]+")


def sources() -> dict[str, Path]:
    """Return the names of the generated pages, each with its source."""
    return {path.stem: path for path in sorted(FACTS.glob("*.toml"))}


def facts(name: str) -> dict[str, Any]:
    """Return the content of a source."""
    return tomllib.loads(sources()[name].read_text())


def sections(name: str) -> dict[str, dict[str, list[str]]]:
    """Return the rows of a source: by section, then by first column, the other columns."""
    return {
        title: {key: cells for key, cells in section.items() if key not in _SETTINGS}
        for title, section in facts(name).items()
        if isinstance(section, dict)
    }


def page(name: str) -> str:
    """Return the text of a generated page."""
    held = facts(name)
    if complete := _COMPLETED.get(name):
        complete(held)
    source = f"tests/facts/{name}.toml"
    written = f"<!-- Written by docs/write_tables.py from {source}: edit that file. -->"
    parts = [f"# {held['title']}", written, held["intro"].strip()]
    for title, section in held.items():
        if isinstance(section, dict):
            parts += [f"## {title}", *([section["text"].strip()] if "text" in section else [])]
            head = section.get("head", held.get("head"))
            shown = {
                key: cells if held.get("tests_shown", True) else cells[: len(head) - 1]
                for key, cells in section.items()
                if key not in _SETTINGS
            }
            parts.append(table(shown, head, code=section.get("code", held.get("code", False))))
    return "\n\n".join(parts) + "\n"


def table(rows: dict[str, list[str]], head: list[str], *, code: bool) -> str:
    """Return the table of some rows."""
    lines = [row(head), row(["---"] * len(head))]
    single = len(head) - 2
    for key, cells in rows.items():
        last = ", ".join(map(spelled, cells[single:]))
        lines.append(row([span(key) if code else key, *cells[:single], last]))
    return "\n".join(lines)


def row(cells: list[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def span(text: str) -> str:
    """Return text as code, also if it has backticks.

    >>> span("a"), span("`a` b")
    ('`a`', '`` `a` b ``')
    """
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def spelled(item: str) -> str:
    """Return an item of the last column: a test or a scenario as code, other text as it is.

    >>> spelled("tests/a.py::test_b[c] (d)"), spelled("crash/a_b"), spelled("none: why")
    ('`tests/a.py::test_b` (`c`) (d)', '`crash/a_b`', 'none: why')
    """
    if found := _TEST.fullmatch(item):
        test, case, note = found.groups("")
        return f"`{test}`{f' (`{case}`)' if case else ''}{note}"
    return span(item) if _SCENARIO.fullmatch(item) else item


def codes(held: dict[str, Any]) -> None:
    """Add to each code of `fsck` what is at stake, and what `repair=True` does."""
    from hoodie_nb.checks.findings import REPAIRS, STAKES

    section = held["Codes"]
    said = {key: cells for key, cells in section.items() if key not in _SETTINGS}
    if said.keys() != STAKES.keys():
        raise ValueError(f"codes that differ from STAKES: {sorted(said.keys() ^ STAKES.keys())}")
    for code, (what, fix, *more) in said.items():
        repaired = ", ".join([REPAIRS[code], *more]) if code in REPAIRS else "no"
        section[code] = [what, STAKES[code], fix, repaired]


def options(held: dict[str, Any]) -> None:
    """Write Hudi's options of a write by their names in the code."""
    from hoodie_nb.spark_format.hudi_options import ARGUMENTS, FIXED, REFUSED, WITHOUT_EFFECT

    defining = held["Options that define a table"]
    values = {key: cells for key, cells in defining.items() if key not in _SETTINGS}
    for argument, (text,) in values.items():
        del defining[argument]
        names = [name for name, (meant, _) in ARGUMENTS.items() if meant == argument]
        defining[", ".join(map(span, names))] = [span(argument), text]
    if {meant for meant, _ in ARGUMENTS.values()} != values.keys():
        raise ValueError("the source has other arguments than ARGUMENTS")
    held["Options with only one value"] |= {
        span(name): [span(value), why] for name, (value, why) in FIXED.items()
    }
    of_shuffles, of_rows = held["Options without effect"].pop("why")
    held["Options without effect"] |= {
        span(name): [of_shuffles if "shuffle" in name else of_rows] for name in WITHOUT_EFFECT
    }
    held["Refused options"] |= {span(name): [why] for name, why in REFUSED.items()}


def commands(held: dict[str, Any]) -> None:
    """Write the commands and options of the command line, each with its help."""
    from hoodie_nb.__main__ import parser

    section = held["The command `hoodie-nb`"]
    (found,) = (action for action in parser()._actions if action.choices)
    helps = {choice.dest: choice.help or "" for choice in found._choices_actions}
    for name, command in found.choices.items():
        shown = [a for a in command._actions if a.option_strings and a.dest != "help"]
        paths = [a.metavar or a.dest for a in command._actions if not a.option_strings]
        does = " ".join([helps[name], *(f"({page})" for page in section.pop(name, []))])
        options = "; ".join(f"{span(a.option_strings[-1])}: {a.help}" for a in shown)
        section[span(" ".join(["hoodie-nb", name, *map(str.upper, paths)]))] = [does, options]


_COMPLETED = {"commands": commands, "fsck": codes, "hudi-options": options}


def outdated() -> list[str]:
    """Return the generated pages that are not what their sources say."""
    return [
        f"docs/{name}.md"
        for name in sources()
        if not (path := ROOT / "docs" / f"{name}.md").exists() or path.read_text() != page(name)
    ]


def main() -> int:
    """Write the pages; with `--check` only report those that would change."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        found = outdated()
        for each in found:
            print(f"{each}: run docs/write_tables.py")
        return 1 if found else 0
    for name in sources():
        (ROOT / "docs" / f"{name}.md").write_text(page(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
