"""The suite without Spark, by package; its modules (`tables`, `lives`, …) are importable by name.

Tables are in memory if there is room: thousands of small commits would wait for the disk.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
for _room in (*sorted(path for path in _HERE.iterdir() if path.is_dir()), _HERE):
    sys.path.insert(0, str(_room))  # some tests share what another module prepares

_SHM = "/dev/shm"
if os.access(_SHM, os.W_OK) and shutil.disk_usage(_SHM).free > 1 << 30:
    _place: str | None = _SHM
else:
    _place = None


@pytest.fixture(scope="session")
def new_folder() -> Iterator[Callable[[], Path]]:
    """A function that creates empty folders, which are deleted at the end of the tests."""
    with tempfile.TemporaryDirectory(prefix="hoodie-nb-", dir=_place) as base:
        yield lambda: Path(tempfile.mkdtemp(dir=base))


@pytest.fixture
def tmp_path(new_folder: Callable[[], Path]) -> Iterator[Path]:
    """An empty folder of one test."""
    folder = new_folder()
    yield folder
    shutil.rmtree(folder)
