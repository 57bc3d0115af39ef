"""Write, watch and understand Hudi's streaming write pipeline from Python (RFC-24 on Spark).

The names below are loaded on first use: Spark's Python workers import this package only for the
operators, and should not wait for pandas or the lab package.
"""

import importlib
from typing import TYPE_CHECKING

from hoodie_nb import display

if TYPE_CHECKING:
    from hoodie_nb.api import Table
    from hoodie_nb.errors import (
        CommitFailed,
        ConcurrentWriter,
        HoodieError,
        InvalidConfig,
        InvalidInput,
        InvalidTable,
        WriteFailed,
    )
    from hoodie_nb.lab import faults, flights
    from hoodie_nb.lab.bloom_view import BloomView
    from hoodie_nb.lab.controls import Controls
    from hoodie_nb.lab.dashboard import Dashboard
    from hoodie_nb.lab.doctor import doctor
    from hoodie_nb.lab.job_views import FaultPanel, IndexView
    from hoodie_nb.lab.race import race
    from hoodie_nb.lab.replay import Replay
    from hoodie_nb.lab.tables import FileGroups, Timeline
    from hoodie_nb.session import log_path, spark
    from hoodie_nb.streams import write_stream

__version__ = "0.1.0.dev0"
__all__ = [
    "BloomView",
    "CommitFailed",
    "ConcurrentWriter",
    "Controls",
    "Dashboard",
    "FaultPanel",
    "FileGroups",
    "HoodieError",
    "IndexView",
    "InvalidConfig",
    "InvalidInput",
    "InvalidTable",
    "Replay",
    "Table",
    "Timeline",
    "WriteFailed",
    "__version__",
    "doctor",
    "faults",
    "flights",
    "log_path",
    "race",
    "spark",
    "write_stream",
]
_HOMES = {
    "BloomView": "lab.bloom_view",
    "Controls": "lab.controls",
    "Dashboard": "lab.dashboard",
    "FaultPanel": "lab.job_views",
    "FileGroups": "lab.tables",
    "IndexView": "lab.job_views",
    "Replay": "lab.replay",
    "Timeline": "lab.tables",
    "Table": "api",
    "write_stream": "streams",
    "doctor": "lab.doctor",
    "log_path": "session",
    "race": "lab.race",
    "spark": "session",
}


def __getattr__(name: str) -> object:
    if name in ("faults", "flights"):
        return importlib.import_module(f"hoodie_nb.lab.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'hoodie_nb' has no attribute {name!r}")
    module = importlib.import_module(f"hoodie_nb.{_HOMES.get(name, 'errors')}")
    return getattr(module, name)


def _view(value: object) -> display.View | None:
    """Return the widget for a value; None without the notebook packages."""
    try:
        widgets = importlib.import_module("hoodie_nb.lab.widgets")
    except ImportError:
        return None
    found: display.View | None = widgets.view(value)
    return found


display.maker = _view


def __dir__() -> list[str]:
    return sorted(__all__)
