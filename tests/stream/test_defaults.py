"""What a stream gets whose caller names no pipeline: the fastest that the other options allow."""

import pytest
from test_stream import board_table, run, same_as_board

import hoodie_nb as hn

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({}, "direct"),
        ({"index": "bloom"}, "direct"),
        ({"index": "state"}, "step3"),
        ({"commit_interval": 2}, "direct"),
        ({"commit_on": "write"}, "direct"),
        ({"operation": "insert"}, "direct"),
        ({"on_bad_record": "quarantine"}, "direct"),
    ],
    ids=str,
)
def test_auto_is_the_fastest_pipeline_that_the_options_allow(spark, tmp_path, settings, chosen):
    """The events and the status name the pipeline that was chosen; nothing is refused."""
    table = board_table(tmp_path / "board")
    job = run(spark, table, tmp_path, days=1, **settings)
    [started] = job.events.records("job_started")
    assert started.values["pipeline"] == chosen and f"pipeline {chosen}" in job.status
    if settings.get("operation") != "insert":
        same_as_board(table, 1)


def test_auto_moves_global_keys_with_direct(spark, tmp_path):
    """A table with global keys needs no option, either."""
    table = hn.Table.create(
        tmp_path / "board",
        schema=hn.flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
        global_index=True,
    )
    job = run(spark, table, tmp_path, days=1)
    assert "pipeline direct on the driver" in job.status
    same_as_board(table, 1)


def test_an_unknown_pipeline_is_refused_with_the_names(tmp_path):
    """The message lists "auto", too."""
    table = board_table(tmp_path / "board")
    with pytest.raises(hn.InvalidConfig, match="'auto', 'current'"):
        hn.write_stream(None, table, checkpoint=tmp_path / "ck", pipeline="fastest")
