"""Damage trials: sixty-five in the quick tests, `make damage` runs two thousand."""

from __future__ import annotations

import pytest
from damage import KINDS, trial


@pytest.mark.parametrize("kind", KINDS)
def test_damage_ends_in_right_rows_or_a_refusal(kind: str) -> None:
    """Whatever becomes of a file: right rows, or an InvalidTable that names it and a cure."""
    failed = [str(outcome) for outcome in (trial(kind, n) for n in range(5)) if outcome.failed]
    assert failed == []


@pytest.mark.parametrize(("kind", "number"), [("tmp", 17)])
def test_trials_that_failed_once(kind: str, number: int) -> None:
    """Tmp 17: another engine commits between the checkpoints of one instant that is held open.

    A key then had two places; the delete found one of them, and the redo brought the other back.
    """
    outcome = trial(kind, number)
    assert not outcome.failed, str(outcome)
