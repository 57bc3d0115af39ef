"""The code of docs/how-to runs as it is printed, and prints what the pages show."""

from __future__ import annotations

import pytest
from page_code import ROOT, run_page, shown

HERE = ("daily-batch", "from-delta-rs", "privacy")  # the others: tests/api/test_howto_spark.py


@pytest.mark.parametrize("name", HERE)
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    """Each block of Python runs after those before it, without Spark, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names = run_page(f"docs/how-to/{name}.md")
    assert names["table"].fsck() == []
