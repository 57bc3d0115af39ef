from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .client import Judge


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, wherever these tests are run from."""
    config.addinivalue_line("markers", "oracle: asks Java Hudi (make oracle)")


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Return Java Hudi, installed if needed, started once; in CI it is required."""
    installer = [sys.executable, str(Path(__file__).with_name("install.py"))]
    made = subprocess.run(installer, capture_output=True, text=True, check=False)
    if made.returncode:
        stop = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        stop(made.stderr.strip())
    judge = Judge(json.loads(made.stdout), tmp_path_factory.mktemp("judge"))
    yield judge
    judge.close()
