"""What must hold after a trial: the table is the dict of its batches, and at rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path

from writers.turns.rows import Traits, visible

from hoodie_nb import Table
from hoodie_nb.storage.storage import OURS
from hoodie_nb.types.schema import COMMIT_TIME

EMPTY = ("staged", "prepared", "sealed", "tmp", "turns")


def check(
    traits: Traits, root: Path, acks: dict[str, str], maybe: set[str], seen: list[list[str]]
) -> Counter[str]:
    """Compare the table with its batches in the order of their commits; return what there is."""
    table = Table.open(root)
    table.clean(commits=10)  # recovers
    marks, orders = snapshot(table, traits)
    assert acks.keys() <= marks.keys(), f"lost: {acks.keys() - marks.keys()}"
    assert marks.keys() <= acks.keys() | maybe, f"not begun: {marks.keys() - acks.keys()}"
    wrong = [name for name, instant in acks.items() if instant and instant != marks[name]]
    assert not wrong, f"not in the instants that were acknowledged: {wrong}"
    misread = ["".join(_misread(traits, order, seen)) for order in orders]
    assert "" in misread, misread[0]
    left = [
        f"{name}/{e.name}"
        for name in EMPTY
        for e in table._handle.storage.list_folder(f"{OURS}/{name}")
    ]
    pending = table._handle.timeline.pending()
    assert (left, pending) == ([], []), "left over"
    assert [str(finding) for finding in table.fsck()] == []
    return Counter(batches=len(marks), unacknowledged=len(marks.keys() - acks.keys()))


def _misread(traits: Traits, order: list[str], seen: list[list[str]]) -> Iterator[str]:
    """Yield what readers saw that is not a beginning of this order."""
    for state in seen:
        known = [name for name in order if any(row.split()[0] == name for row in state)]
        if known != order[: len(known)] or state != traits.snapshot(known):
            yield f"a reader saw {state}, with {known} of {order}\n"


def snapshot(table: Table, traits: Traits) -> tuple[dict[str, str], list[list[str]]]:
    """Return the instants of the batches that are in the table, and possible orders of these.

    The rows must be those of the batches in such an order.
    """
    rows = table.to_arrow().to_pylist()
    marks = {row["id"]: row[COMMIT_TIME] for row in rows if row["id"] == row["v"]}
    found = visible(rows)
    orders = [*_orders(marks)]
    fitting = [order for order in orders if traits.snapshot(order) == found]
    wanted = traits.snapshot(orders[0])
    assert fitting, f"rows {found}, not {wanted}, after {orders[0]}"
    return marks, fitting


def _orders(marks: dict[str, str]) -> Iterator[list[str]]:
    """Yield the orders in which batches may have been committed: by their instants.

    Checkpoints of two streams in one instant are in the order in which they were sealed.
    """
    groups = defaultdict(list)
    for name in sorted(marks):
        groups[marks[name]].append(name)
    choices = [[o for o in permutations(groups[time]) if _in_order(o)] for time in sorted(groups)]
    for parts in product(*choices):
        yield [name for part in parts for name in part]


def _in_order(names: tuple[str, ...]) -> bool:
    """Whether the batches of each writer are in their order."""
    return all(
        [n for n in names if n[0] == writer] == sorted(n for n in names if n[0] == writer)
        for writer in {name[0] for name in names}
    )
