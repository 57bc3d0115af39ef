"""The cluster that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_hosts import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A master and two workers."""
    with Cluster() as made:
        yield made
