"""One Spark session per test process, and the switch that lets tests arm failpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile("no deadline", deadline=None)  # machines are shared and slow at times
settings.load_profile("no deadline")
os.environ["HOODIE_NB_TESTING"] = "1"  # before any test, for the processes that tests start, too


# shared test modules have other names and are not searched for doctests
collect_ignore_glob = ["*/[!t]*.py", "*/t[!e]*.py", "*/te[!s]*.py"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark on two cores, with its folders in this process's temporary folder."""
    from hoodie_nb.session import spark as make_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
    }
    session = make_session(cores=2, memory="1g", conf=conf)
    yield session
    session.stop()
