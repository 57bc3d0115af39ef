"""Damage trials: eighty-five in the quick tests, two thousand in `make damage`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from damage import KINDS, trial


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """Yield a separate process: a trial forks, which hudi-rs with threads does not survive."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("kind", KINDS)
def test_damage_ends_in_right_rows_or_a_refusal(kind: str, process: ProcessPoolExecutor) -> None:
    """Any damage ends with the right rows, or an InvalidTable that names the file and a fix."""
    outcomes = process.map(trial, [kind] * 5, range(5))
    assert [str(outcome) for outcome in outcomes if outcome.failed] == []


@pytest.mark.parametrize(("kind", "number"), [("tmp", 17)])
def test_trials_that_failed_once(kind: str, number: int, process: ProcessPoolExecutor) -> None:
    """Tmp 17: another engine commits between the checkpoints of one instant that is held open.

    A key then was in two files; the delete found one of them, and the redo restored the other.
    """
    outcome = process.submit(trial, kind, number).result()
    assert not outcome.failed, str(outcome)
