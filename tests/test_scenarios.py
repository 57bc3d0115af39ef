"""Golden scenarios: `tests/scenarios/*.txt`, blocks of verbs, `---`, what they printed, blank line.

The file name is the claim. `UPDATE_GOLDEN=1` writes the files anew from what the library does; read
the difference before you keep it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.verbs import World

from hoodie_nb.events import EventLog
from hoodie_nb.pipeline.checkpointing import settle
from hoodie_nb.pipeline.coordinator import WriteCoordinator
from hoodie_nb.table.fsck import fsck

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))


def blocks(text: str) -> Iterator[list[str]]:
    """Yield the input lines of each block."""
    for block in text.strip().split("\n\n"):
        yield block.partition("\n---")[0].splitlines()


def play(world: World, text: str) -> str:
    """Run a scenario and return it with what it printed."""
    played = []
    for lines in blocks(text):
        verbs = [line for line in lines if line and not line.startswith("#")]
        printed = [said for line in verbs for said in world.run(line)]
        played.append("\n".join([*lines, *(["---", *printed] if verbs else [])]))
    return "\n\n".join(played) + "\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_scenario(file: Path, tmp_path: Path) -> None:
    """The scenario prints what its file says, and the next process leaves a clean table."""
    world, text = World(tmp_path), file.read_text()
    try:
        printed = play(world, text)
    finally:
        world.close()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(printed)
    assert printed == file.read_text()
    if "ends=unclean" not in text:
        leaves_a_clean_table(world, doubles="operation=insert" in text or "index=state" in text)


def leaves_a_clean_table(world: World, *, doubles: bool) -> None:
    """Whoever comes next completes what is prepared; nothing is pending, staged or twice."""
    table = world.handle()
    settle(WriteCoordinator(table, EventLog()), EventLog())
    assert world.do_staged() == ["nothing"]
    assert table.timeline.pending() == []
    assert doubles or fsck(world.path) == []
