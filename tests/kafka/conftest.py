"""The broker that the tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from kafka_broker import Broker
from kafka_install import install
from oracle.install import Unavailable


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a broker, installed if needed; in CI it is required."""
    try:
        installed = install()
    except Unavailable as missing:
        stop = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        stop(f"Kafka {missing}")
    with Broker(installed, tmp_path_factory.mktemp("kafka")) as started:
        yield started
