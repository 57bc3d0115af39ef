"""Golden scenarios: `tests/scenarios/*/*.txt`, blocks of verbs, `---` and their output.

The file name is the claim, its folder the subject, its first line (`#`) the reason. A setting with
alternatives (`pipeline=step1|step2`) runs once with each, and all must print the same.
`UPDATE_GOLDEN=1` rewrites the files with what the library does now; read the difference before you
keep it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from scenarios.verbs import World
from scenarios.views import Views

from hoodie_nb.checks.fsck import fsck
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.local.settling import settle

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*/*.txt"))
CHOICE = re.compile(r"(?<==)\w+(?:\|\w+)+")


def name_of(file: Path) -> str:
    """Return `commit/completion_is_idempotent` for that file."""
    return file.relative_to(FOLDER).with_suffix("").as_posix()


def blocks(text: str) -> Iterator[list[str]]:
    """Yield the input lines of each block."""
    for block in text.strip().split("\n\n"):
        yield block.partition("\n---")[0].splitlines()


def cases() -> Iterator[object]:
    """Yield each scenario with each of its alternatives."""
    for file in FILES:
        asked = [found.split("|") for found in CHOICE.findall(file.read_text())]
        for choice in itertools.product(*asked):
            yield pytest.param(file, choice, id="-".join([name_of(file), *choice]))


def play(world: World, text: str, choice: Sequence[str]) -> str:
    """Run a scenario and return it with its output."""
    played, chosen = [], iter(choice)
    for lines in blocks(text):
        verbs = [CHOICE.sub(lambda _: next(chosen), line) for line in lines if line[0] != "#"]
        printed = [said for line in verbs for said in world.run(line)]
        played.append("\n".join([*lines, "---", *printed]))
    return "\n\n".join(played) + "\n"


@pytest.mark.parametrize(("file", "choice"), list(cases()))
def test_scenario(file: Path, choice: Sequence[str], tmp_path: Path) -> None:
    """The scenario prints what its file says, and the next process leaves a clean table."""
    world, text = World(tmp_path), file.read_text()
    try:
        printed = play(world, text, choice)
    finally:
        world.close()
    first = all(f"={value}|" in text for value in choice)
    if os.environ.get("UPDATE_GOLDEN") == "1" and first:
        file.write_text(printed)
    assert printed == file.read_text()
    if "ends=unclean" not in text:
        leaves_a_clean_table(world, doubles="operation=insert" in text or "index=state" in text)


def leaves_a_clean_table(world: World, *, doubles: bool) -> None:
    """The next start completes what is prepared; nothing is pending, staged or duplicated."""
    table = world.handle()
    settle(WriteCoordinator(table, EventLog()))
    assert Views(world).do_staged() == ["nothing"]
    assert table.timeline.pending() == []
    assert doubles or fsck(world.path) == []


def test_the_documentation_lists_every_scenario() -> None:
    """docs/scenarios.md names every scenario, and no other."""
    text = (FOLDER.parents[1] / "docs" / "scenarios.md").read_text()
    assert set(re.findall(r"`(\w+/\w+)`", text)) == {name_of(file) for file in FILES}
    assert list(FOLDER.glob("*.txt")) == []


def test_scenarios_give_their_reason() -> None:
    """A scenario opens with one `#` line, a sentence; no other line is a comment."""
    wrong = []
    for file in FILES:
        comments = [line for line in file.read_text().splitlines() if line.startswith("#")]
        first = file.read_text().partition("\n")[0]
        if comments != [first] or not re.fullmatch(r"# [A-Z].{20,96}\.", first):
            wrong.append(name_of(file))
    assert wrong == []


@pytest.mark.parametrize("folder", ["crash", "redo"])
def test_long_histories_show_what_their_claim_is_about(folder: str) -> None:
    """The crash and redo scenarios choose the events that they show."""
    files = [file for file in FILES if file.parent.name == folder]
    assert files
    for file in files:
        assert file.read_text().splitlines()[1].startswith("show "), name_of(file)
