"""A listing that grows name by name is the one of all its names at once."""

from dataclasses import astuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hoodie_nb.timeline.instant import COMMITS, LAYOUT_1, LAYOUT_2, Instant, Layout, Listing, State

TIMES = st.integers(0, 30).map(lambda n: f"202611210243{n:02d}" + "363" * (n % 2))
ENDS = {"compaction": "commit", "logcompaction": "deltacommit"}  # the action of what completes
ACTIONS = st.sampled_from([*COMMITS, *ENDS, "clean", "rollback", "savepoint"])


@pytest.mark.parametrize("layout", [LAYOUT_1, LAYOUT_2])
@given(st.lists(st.tuples(TIMES, ACTIONS, st.sampled_from(State)), max_size=40), st.data())
def test_grown_listing_is_that_of_all_names(
    layout: Layout, drawn: list[tuple[str, str, State]], data: st.DataObject
) -> None:
    """Whatever the order in which its names appear, and however many at once."""
    end = {State.COMPLETED: "20261121024459001"} if layout is LAYOUT_2 else {}
    instants = [Instant(at, action, state, end.get(state)) for at, action, state in drawn]
    names = data.draw(st.permutations([*{layout.file_name(i) for i in instants}]))
    grown = Listing(layout=layout)
    while names:
        count = data.draw(st.integers(1, len(names)))
        grown, names = grown.of({*grown.names, *names[:count]}), names[count:]
    best: dict[tuple[str, str], Instant] = {}
    for instant in sorted(instants, key=lambda i: list(State).index(i.state)):
        best[instant.requested_time, instant.action] = instant
    for at, action in [*best]:
        end = best.get((at, ENDS.get(action, "")))
        if end is not None and end.state is State.COMPLETED:
            del best[at, action]
    assert list(grown.latest.items()) == sorted(best.items(), key=lambda item: item[0])
    found = [i for _, i in sorted(best.items(), key=lambda item: item[0])]
    done = [i for i in found if i.state is State.COMPLETED and i.action in COMMITS]
    assert grown.commits == tuple(done)
    assert grown.commit_times == tuple(i.requested_time for i in done)
    assert grown.pending == tuple(i for i in found if i.state is not State.COMPLETED)
    assert grown.saved == {i.requested_time for i in found if i.action == "savepoint"}
    assert astuple(grown) == astuple(Listing(layout=layout).of(grown.names))
