"""Schedules of several processes that write one real table, drawn and listed: see simulator.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from suites import seed
from writers.simulator import KINDS, trial, warmed
from writers.turns.rows import Traits
from writers.turns.schedules import Listed, listed

DRAWN = range(24)
CAUGHT = {  # a rule, and a seed whose schedule fails without it
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder in which processes can be forked quickly."""
    with warmed() as folder:
        yield folder


@pytest.mark.parametrize("number", DRAWN)
def test_drawn_schedules(folder: Path, number: int) -> None:
    """Writers, services and followers that are interrupted, killed or asleep at any step.

    The commit draws the seeds (`HOODIE_NB_SAMPLE=<commit>` draws the same ones again).
    """
    drawn = random.Random(f"{seed()} {number}").randrange(10**9)
    found = trial(Traits.of(drawn, KINDS, None, None), folder)
    assert found["turns"] > 0


@pytest.mark.parametrize("actors", ["ab", "as"])
def test_each_switch_and_each_death(folder: Path, actors: str) -> None:
    """One writer stops or dies at each step of the protocol, and the other one goes on."""
    traits = replace(Traits.of(1, actors, 9, "copy_on_write"), batches=1)
    turns = []

    def run(schedule: Listed) -> None:
        turns.append(trial(traits, folder, schedule)["turns"])

    assert len([*listed(run, 1)]) > 30
    assert max(turns) > min(turns)


@pytest.mark.parametrize("rule", CAUGHT)
def test_without_a_rule_a_schedule_fails(folder: Path, rule: str) -> None:
    """The simulator sees what the rule is for."""
    traits = Traits.of(CAUGHT[rule], KINDS, None, None)
    trial(traits, folder)
    with pytest.raises(AssertionError):
        trial(traits, folder, rule=rule)
