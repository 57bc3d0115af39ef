"""Random histories of services, some with logs: a few here; `make services` runs a hundred."""

from __future__ import annotations

import pytest
from run_services import run
from services.shape import LOGS

PER_TEST, STEPS = 4, 12


@pytest.mark.parametrize("first", [*range(0, 16, PER_TEST), *range(LOGS, LOGS + 8, PER_TEST)])
def test_random_services_and_crashes_end_in_the_model(first: int) -> None:
    """Whatever is cleaned, archived, merged, saved, undone or dies: a dict has the same rows."""
    for seed in range(first, first + PER_TEST):
        run(seed, STEPS)
