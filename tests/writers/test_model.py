"""The plan of several writers holds in all schedules of small stories, and needs each rule.

`python tests/writers/test_model.py` walks many more stories: all pairs of batches of two keys.
"""

from __future__ import annotations

import itertools
import sys

import pytest
from writers.model import explore
from writers.stories import ONE, SHOWN, STORIES, TWO
from writers.table import Change, File
from writers.world import Broken, Rules, Story


@pytest.mark.parametrize(("crashes", "sleeps"), [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("name", STORIES)
def test_the_plan_holds_in_all_schedules(name: str, crashes: int, sleeps: int) -> None:
    """Each reader sees the completed batches, and each checkpoint is in the table once."""
    assert explore(STORIES[name]._replace(crashes=crashes, sleeps=sleeps)) > 100


@pytest.mark.parametrize("name", ["the same new key", "two logs"])
@pytest.mark.parametrize(("crashes", "sleeps"), [(2, 0), (1, 1)])
def test_the_plan_holds_if_a_taker_dies(name: str, crashes: int, sleeps: int) -> None:
    """Two faults: who completes a dead writer's checkpoint may die of it, or sleep."""
    assert explore(STORIES[name]._replace(crashes=crashes, sleeps=sleeps)) > 10_000


@pytest.mark.parametrize("rule", Rules._fields)
def test_each_rule_is_needed(rule: str) -> None:
    """Without it, one schedule of its story breaks."""
    name, crashes, sleeps = SHOWN[rule]
    told = STORIES[name]._replace(crashes=crashes, sleeps=sleeps)
    with pytest.raises(Broken):
        explore(told, Rules()._replace(**{rule: False}))


CHANGES = [
    Change("k1", 3),
    Change("k1", 6),
    Change("k2", 4),
    Change("k2", 6),
    Change("k1", 4, deleted=True),
    Change("k1", 6, deleted=True),
    Change("k2", 6, deleted=True),
]
BOTH = frozenset({File("g1", 1, frozenset({Change("k1", 5), Change("k2", 5)}))})
DELETED = frozenset(
    {
        File("g1", 1, frozenset({Change("k1", 3), Change("k2", 5)})),
        File("g1", 1, frozenset({Change("k1", 5, deleted=True)}), log=True),
    }
)


def main() -> None:
    """Walk all stories of two batches, and those above with two faults; print what was walked."""
    pairs = [(a, b) for a in CHANGES for b in CHANGES if a.key < b.key]
    batches = [*((change,) for change in CHANGES), *pairs]
    switches = itertools.product((False, True), repeat=3)
    for logs, event_time, fill in switches:
        for service in ("", "cluster", "compact"):
            total = 0
            for files in (frozenset(), ONE, TWO, BOTH, DELETED):
                for first, second in itertools.product(batches, batches):
                    told = Story(((first,), (second,)), files, logs, event_time, fill)
                    total += explore(told._replace(service=service))
            print(f"{logs=} {event_time=} {fill=} {service=}: {total} worlds", flush=True)
    for name, told in STORIES.items():
        for crashes, sleeps in ((2, 0), (1, 1)):
            total = explore(told._replace(crashes=crashes, sleeps=sleeps))
            print(f"{name}, {crashes} crashes, {sleeps} sleeps: {total} worlds", flush=True)


if __name__ == "__main__":
    sys.exit(main())
