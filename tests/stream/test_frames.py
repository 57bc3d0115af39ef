"""The way of a micro-batch through the library is short, so that a reader can follow it."""

import sys
import threading
from pathlib import Path

import pytest
from test_stream import board_table, run

import hoodie_nb as hn

pytestmark = pytest.mark.spark
PACKAGE = str(Path(hn.__file__).parent)


def names_of(frame):
    """Return the functions of this library that lead to a frame, the outermost first."""
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.insert(0, frame.f_code.co_name)
        frame = frame.f_back
    return found


@pytest.mark.parametrize("settings", [{}, {"commit_interval": 2}], ids=["each", "interval"])
@pytest.mark.parametrize("placement", ["driver", "executors"])
def test_a_micro_batch_reaches_spark_in_seven_functions(spark, tmp_path, placement, settings):
    """From Spark's callback to the call that runs the batch there are at most seven."""
    ways, ended = [], threading.Event()

    def note(frame, event, _):
        if ended.is_set():  # a thread of py4j outlives the test
            sys.setprofile(None)
        name = frame.f_code.co_name
        if event == "call" and name in ("toArrow", "collect"):
            way = names_of(frame)
            if "_on_batch" in way:
                ways.append(way[way.index("_on_batch") :])

    threading.setprofile(note)
    try:
        table = board_table(tmp_path / "board")
        run(spark, table, tmp_path, days=1, placement=placement, **settings)
    finally:
        threading.setprofile(None)
        ended.set()
    assert ways and max(map(len, ways)) <= 7, ways
