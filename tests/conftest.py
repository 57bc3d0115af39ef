"""One Spark session per test process, and the switch that lets tests arm failpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from s3_server import S3Server
from suites import pytest_addoption, pytest_collection_modifyitems, pytest_configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]  # hooks

# Machines are shared and slow at times, so no deadline. The same examples in each run: a change
# is judged by itself. HOODIE_NB_RANDOM=1 draws new ones.
SAME = os.environ.get("HOODIE_NB_RANDOM") != "1"
settings.register_profile("no deadline", deadline=None, derandomize=SAME)
settings.load_profile("no deadline")
os.environ["HOODIE_NB_TESTING"] = "1"  # before any test, for the processes that tests start, too


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore shared test modules, which have other names: they are not searched for doctests."""
    is_module = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if is_module else None


@pytest.fixture(scope="module")
def many_logs() -> Iterator[None]:
    """Let the logs of merge-on-read tables be as large as base files: of a few rows they are."""
    from hoodie_nb.buckets import plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "LOGS_PER_BASE", 10)
        yield


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes do not wait for others, as with `wait=0`: for tests of what is then said."""
    from hoodie_nb import clock

    monkeypatch.setattr(clock, "WAIT_S", 0.0)
    monkeypatch.setattr(clock, "STORE_WAIT_S", 0.0)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Start an S3 server on the loopback interface."""
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark on two cores, with its folders in this process's temporary folder."""
    from hoodie_nb.api.session import spark as make_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
    }
    session = make_session(cores=2, memory="1g", conf=conf)
    yield session
    session.stop()
