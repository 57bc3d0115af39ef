"""The code of README.md and docs/using.md runs as it is printed, in an empty folder."""

from __future__ import annotations

import pandas as pd
import pytest
from new_process import run_code
from page_code import ROOT, blocks

import hoodie_nb as hn

pytestmark = pytest.mark.spark


def code(page: str) -> list[str]:
    """Return the blocks of Python of a page."""
    return blocks("python", (ROOT / page).read_text())


def orders(first: int, last: int, amount: float) -> pd.DataFrame:
    """Return orders as a user's program saves them."""
    keys = [f"order {number}" for number in range(first, last)]
    return pd.DataFrame({"order_id": keys, "customer": "Ann", "amount": amount})


def test_the_code_of_the_readme_takes_a_users_own_file(tmp_path):
    """A file of pandas is created as a table, upserted and read; a stream changes and adds rows."""
    orders(0, 10, 1.0).to_parquet(tmp_path / "orders.parquet")
    (tmp_path / "incoming").mkdir()
    orders(5, 15, 2.0).to_json(tmp_path / "incoming" / "1.json", orient="records", lines=True)
    (block,) = code("README.md")
    done = run_code(block, tmp_path)  # a process of its own, since the JVM keeps its folder
    assert done.returncode == 0, done.stderr
    assert "order 0" in done.stdout and "_hoodie" not in done.stdout
    table = hn.Table.open(tmp_path / "orders")
    rows = table.to_pandas(meta=False)
    assert set(rows["customer"]) == {"Ann"}
    amounts = dict(zip(rows["order_id"], rows["amount"], strict=True))
    assert amounts == {f"order {n}": 1.0 if n < 5 else 2.0 for n in range(15)}
    assert table.fsck() == []


def test_the_code_of_the_page_on_using_a_table_runs(spark, tmp_path, monkeypatch):
    """Streams, batches, reads, upkeep, and the changes that a program reads after them."""
    monkeypatch.chdir(tmp_path)
    first, following = code("docs/using.md")
    names = {"position": "earliest"}
    exec(compile(first, "docs/using.md", "exec"), names)
    assert names["table"].fsck() == []
    exec(compile(following, "docs/using.md", "exec"), names)
    assert set(names["changed"].to_pandas()["_change"]) == {"insert"}
    assert names["changed"].num_rows == names["table"].to_arrow(["flight_id"]).num_rows
