"""Rows are sorted by eight bytes of text at a time, with the order that Arrow has."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hoodie_nb.rows import ordering
from hoodie_nb.rows.ordering import ascends, ranked, sort_order

ALPHABETS = ["ab", "a\0", "0123456789", "aé😀\uffff", "k"]  # ties, padding, digits, UTF-8, one text
BY = [("p", "k", "s"), ("p", "k"), ("k", "s"), ("k", "ts", "s"), ("s", "k"), ("k", "none")]

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("p", "k")),
        ("s", pa.int64()),
        ("ts", pa.float64()),
        ("none", pa.string()),
    ]
)


def rows(draw: random.Random) -> pa.Table:
    """Return rows with a partition, a key, an arrival and columns with nulls, in any chunks."""
    count, letters = draw.choice([0, 1, 2, 3, 10, 50, 300]), draw.choice(ALPHABETS)
    prefix, longest = "x" * draw.choice([0, 3, 30]), draw.choice([0, 1, 3, 8, 9, 17, 60])
    texts = ["".join(draw.choices(letters, k=draw.randint(0, longest))) for _ in range(count)]
    columns = {
        "p": ["".join(draw.choices(letters, k=draw.randint(0, 2))) for _ in texts],
        "k": [prefix + text for text in texts],
        "s": [draw.randint(0, 3) for _ in texts],
        "ts": [draw.choice([None, 1.0, 2.0]) for _ in texts],
        "none": [draw.choice([None, text]) for text in texts],
    }
    table = pa.table(columns, schema=SCHEMA)
    cut = draw.randint(0, count)
    table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    return table.slice(draw.randint(0, 1), draw.choice([count, max(0, count - 2)]))


@pytest.mark.parametrize("seed", range(40))
def test_texts_are_sorted_as_arrow_sorts_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any texts, chunks and further columns give Arrow's stable order, in any number of rounds."""
    draw = random.Random(seed)
    monkeypatch.setattr(ordering, "_COMPARED", draw.choice([0, 16, 40, 1000]))
    for _ in range(5):
        table = rows(draw)
        for by in BY:
            wanted = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in by])
            assert sort_order(table, by).to_pylist() == wanted.to_pylist(), by


@pytest.mark.parametrize("partitions", [1, 2, 200, 300])
def test_many_rows_are_sorted_by_partition_as_arrow_sorts_them(partitions: int) -> None:
    """Rows that are sorted in threads, one partition at a time, have the same stable order."""
    draw, count = np.random.default_rng(partitions), 270_000
    names = np.array([f"p{number:03d}" for number in range(partitions)], dtype=object)
    keys = np.char.mod("key%06d", draw.integers(0, 60_000, count)).astype(object)
    chosen = names[draw.integers(0, partitions, count)]
    table = pa.table({"p": chosen, "k": keys, "s": np.arange(count)})
    wanted = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in ("p", "k", "s")])
    assert sort_order(table, ("p", "k", "s")).equals(wanted.cast(pa.int64()))


def test_texts_of_2_gib_are_left_to_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text column that is too long for one Arrow array is sorted in its chunks."""
    monkeypatch.setattr(ordering, "ARROW_BYTES", 64)
    table = pa.table({"k": pa.chunked_array([["b" * 40, "a" * 40], ["aa", "c" * 40]])})
    assert sort_order(table, ["k"]).to_pylist() == [2, 1, 0, 3]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([["a", "b"], ["c"]], True),
        ([["a", "b"], ["b"]], False),
        ([["a", "c"], ["b", "d"]], False),
        ([["b", "a", "c"]], False),
        ([["a", None]], False),
        ([["a"], [], ["é"]], True),
        ([], True),
    ],
)
def test_rows_that_ascend_are_recognised(texts, expected):
    """Equal values, nulls and the places between chunks count."""
    assert ascends(pa.chunked_array(texts, pa.string())) is expected


@pytest.mark.parametrize("run", [1, 7, 9, 500])
def test_texts_are_ranked_alike_in_short_and_long_runs(run):
    """Runs of a text are ranked by their first rows; the ranks are those of each row by itself."""
    names = np.random.default_rng(run).permutation([f"day={n:03d}" for n in range(200)])
    texts = np.repeat(np.append(names, names[:50]), run)
    ranks, bits = ranked(pa.array(texts))
    assert ranks.tolist() == np.unique(texts, return_inverse=True)[1].tolist()
    assert bits == 8
