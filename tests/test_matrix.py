"""The matrix of tables: forty short histories; `make matrix` runs two hundred."""

from __future__ import annotations

import pytest
from run_matrix import run

PER_TEST, STEPS = 5, 8


@pytest.mark.parametrize("first", range(0, 40, PER_TEST))
def test_random_tables_equal_a_dict_for_all_readers(first: int) -> None:
    """Versions, keys, partitions, types, rules and columns in any mixture: each cell is right."""
    for seed in range(first, first + PER_TEST):
        run(seed, STEPS)
