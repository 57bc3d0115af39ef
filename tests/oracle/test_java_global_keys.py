"""Global keys: Java's GLOBAL_BLOOM and ours in turn move the same keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from .client import BLOOM, Judge
from .readers import agree_on_the_past, check
from .tables import LAYOUTS, Layout, Model, words

pytestmark = pytest.mark.oracle
NINE = {"hoodie.metadata.enable": "false"}
GLOBAL = {
    "hoodie.index.type": "GLOBAL_BLOOM",
    "hoodie.bloom.index.update.partition.path": "true",
}


def turned(layout: Layout) -> Layout:
    """Return the layout in which each row is in the partition of its neighbour."""
    return replace(layout, parts=layout.parts[1:] + layout.parts[:1])


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("name", ["simple", "hive_style"])
def test_both_engines_move_keys_of_one_table(
    judge: Judge, tmp_path: Path, name: str, version: int
) -> None:
    """We create the table and move keys, Java moves them on, and we move them back."""
    layout = LAYOUTS[name]
    other, model = turned(layout), Model(layout)
    options = words(layout) | (BLOOM if version == 6 else NINE) | GLOBAL
    table = layout.create(tmp_path / "t", table_version=version, global_index=True)
    table.upsert(model.upsert(range(40), 2))
    check(judge, table, model)
    model.layout = other
    table.upsert(model.upsert(range(40), 3))
    check(judge, table, model)
    model.layout = layout
    judge.write(table.path, model.upsert(range(40), 4), options)
    check(judge, table, model)
    table.upsert(Model(other).upsert(range(10, 20), 3))  # late: nothing moves
    check(judge, table, model)
    model.layout = other
    table.upsert(model.upsert(range(40), 5))
    check(judge, table, model)
    agree_on_the_past(judge, table)
