"""Random histories against a model: fifty of each pipeline; `make histories` runs a thousand."""

from __future__ import annotations

import pytest
from histories import run

STEPS = 20
VERBS = [
    *("damage", "new_columns", "fork", "bad_batch", "rewind", "archives", "restore_seals"),
    *("undo", "follow"),
]
PER_TEST = 5


@pytest.mark.parametrize("first", range(0, 50, PER_TEST))
@pytest.mark.parametrize("pipeline", ["step1", "step2", "step3"])
def test_random_histories_end_in_the_model(pipeline: str, first: int) -> None:
    """After any crash, failure or repetition no row is lost, duplicated or partly visible."""
    for seed in range(first, first + PER_TEST):
        run(pipeline, seed, STEPS)


@pytest.mark.parametrize("verb", VERBS)
def test_histories_with_one_frequent_kind_of_failure(verb: str) -> None:
    """An otherwise rare verb follows every fourth verb, and the rows are still right."""
    for seed in (4, 9, 15):  # two of them with an interval
        for pipeline in ("step1", "step3"):
            run(pipeline, seed, STEPS, often=verb)


def test_a_history_is_a_function_of_its_seed() -> None:
    """The same seed gives the same verbs, so that a failure can be reproduced."""
    assert run("step2", 3, STEPS) == run("step2", 3, STEPS)


@pytest.mark.parametrize("first", range(0, 50, PER_TEST))
@pytest.mark.parametrize("pipeline", ["step1", "step2", "step3"])
def test_random_histories_of_merge_on_read_tables(pipeline: str, first: int) -> None:
    """The same on tables of versions 8 and 9 that get log files."""
    for seed in range(first, first + PER_TEST):
        run(pipeline, seed, STEPS, logs=True)
