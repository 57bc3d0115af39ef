"""A Spark stream over a restore of its table: refused, then continued as the error says."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from spark_source import FolderSource

import hoodie_nb as hn

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize("settings", [{"operation": "insert"}, {"commit_interval": 2}])
def test_a_stream_inserts_what_was_undone_exactly_once(spark, tmp_path, settings) -> None:
    """After the checkpoint folder is taken back to the batch in the error, no row is missing."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    source = FolderSource(tmp_path / "source", SCHEMA)
    given = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now", **settings}

    def run() -> None:
        hn.write_stream(source.stream(spark), table, **given).wait(300)

    for number in range(6):
        source.add(pa.table({"id": [f"k{number}", f"m{number}"], "n": [number] * 2}))
    run()
    table.restore(table.history()["requested_time"].iloc[1])
    held = 2 * len(table.history()) * settings.get("commit_interval", 1)
    assert len(table.to_arrow()) == held < 12
    for _ in range(2):
        with pytest.raises(hn.InvalidTable, match="restored or replaced") as refused:
            run()
    (last,) = re.findall(r"whose number is above (\d+)", str(refused.value))
    assert 2 * (int(last) + 1) == held
    for name in ("offsets", "commits"):
        for file in Path(tmp_path, "ck", name).iterdir():
            if file.name.isdigit() and int(file.name) > int(last):
                file.unlink()
    source.add(pa.table({"id": ["k6"], "n": [6]}))
    for _ in range(2):
        run()
        found = table.to_arrow(["id", "n"]).to_pylist()
        expected = [(f"{k}{n}", n) for n in range(6) for k in "km"] + [("k6", 6)]
        assert sorted((row["id"], row["n"]) for row in found) == sorted(expected)
    assert table.fsck() == []
