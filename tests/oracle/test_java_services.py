"""Random histories of services, of us and of Java on one table: Java reads what the dict has.

`make services ARGS="--java 100"` runs a hundred.
"""

from __future__ import annotations

import pytest
from run_services import run
from services.java import JavaServices, JudgedHistory
from services.shape import LOGS

from .client import Judge

pytestmark = pytest.mark.oracle
STEPS = 12


@pytest.mark.parametrize("kind", [JudgedHistory, JavaServices])
@pytest.mark.parametrize("seed", [*range(4), *range(LOGS, LOGS + 3)])
def test_java_reads_the_model_after_a_history(
    judge: Judge, kind: type[JudgedHistory], seed: int
) -> None:
    """Whoever writes, cleans, archives and merges, and wherever we die, Java and we agree."""
    run(seed, STEPS, lambda folder, seed: kind(folder, seed, judge))
