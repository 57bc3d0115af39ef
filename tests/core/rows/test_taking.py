"""Rows of any size are taken and sorted: Arrow's own functions fail at 2 GiB of text."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pyarrow as pa
import pytest
from lives import MODELS, SCHEMA, live, make, opened
from tables import without_meta

from hoodie_nb import Table
from hoodie_nb.rows import taking

TYPES = {"key": pa.string(), "blob": pa.binary(), "n": pa.int64(), "tags": pa.list_(pa.string())}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a few rows exceed."""
    monkeypatch.setattr(taking, "ARROW_BYTES", 64)
    monkeypatch.setattr(taking, "PART_BYTES", 200)


def rows(draw: random.Random) -> pa.Table:
    """Return rows with texts of very different lengths, in several chunks."""
    chunks = []
    for _ in range(draw.randrange(1, 5)):
        count = draw.randrange(12)
        texts = [
            "".join(draw.choices(string.ascii_lowercase, k=draw.choice([1, 9, 400])))
            for _ in range(count)
        ]
        data = {
            "key": texts,
            "blob": [None if draw.random() < 0.3 else text.encode() for text in texts],
            "n": [draw.randrange(5) for _ in texts],
            "tags": [[text] * draw.randrange(3) for text in texts],
        }
        chunks.append(pa.table(data, schema=pa.schema(TYPES)))
    return pa.concat_tables(chunks)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("seed", range(60))
def test_large_tables_are_taken_like_small_ones(seed: int) -> None:
    """Any selection in any order, and any sort, equals Arrow's result on the same rows."""
    draw = random.Random(seed)
    table = rows(draw)
    chosen = pa.array(
        draw.choices(range(table.num_rows), k=20) if table.num_rows else [], pa.int64()
    )
    assert taking.take_rows(table, chosen).equals(table.take(chosen))
    by = [("n", "ascending"), ("key", "ascending")]
    assert taking.sort_rows(table, ("n", "key")).equals(table.sort_by(by))
    parts = list(taking.parts_of(table, 3))
    assert pa.concat_tables([table.schema.empty_table(), *parts]).equals(table)
    assert all(0 < part.num_rows <= 3 for part in parts)
    text = [sum(len(v) for v in part.column("key").to_pylist()) for part in parts]
    assert all(size <= 200 + 400 for size in text)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("commit_on", ["write", "checkpoint"])
def test_the_workload_is_right_in_parts(tmp_path: Path, commit_on: str) -> None:
    """Every write, merge and fold gives the model's table if all rows count as too large."""
    root = make(tmp_path / "t")
    live(opened(root), 4, commit_on=commit_on)
    assert without_meta(Table.open(root).to_arrow()) == MODELS[4]
    assert Table.open(root).fsck() == [] and Table.open(root).schema.equals(SCHEMA)
