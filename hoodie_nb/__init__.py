"""Write Apache Hudi tables from Python and PySpark, and watch how; the public names are here.

    import hoodie_nb as hn

    spark = hn.spark()
    table = hn.Table.create("warehouse/board", schema=..., record_key="id", ordering="at")
    table.upsert(data)  # a Spark or pandas DataFrame, or an Arrow table
    with hn.write_stream(stream, table, checkpoint="warehouse/checkpoint") as job:
        job.process_all_available()
    table.to_pandas()

| name | what it is |
| --- | --- |
| `Table` | a table: create, open, write, update, delete, read, changes, clean, fsck |
| `write_stream` | starts a stream into a table and returns its job |
| `register` | lets a session know the format `hoodie_nb`, where Spark does not find it itself |
| `spark`, `log_path`, `doctor` | a local session; the JVM's log; what is missing or damaged |
| `HoodieError` and its subclasses | all errors that are raised on purpose, by what to do |
| `flights`, `faults`, `race` | real input, faults to inject, pipelines compared |
| `cost_model` | what checkpoints cost: seconds, bytes and requests |
| `log_costs` | what copy-on-write and merge-on-read cost: of a batch, of a read |
| `Dashboard`, `Replay`, ... | widgets, listed only if the `notebooks` extra is installed |

Each name is loaded on first use: Spark's Python workers should not wait for pandas and widgets.

Arrow keeps the memory that it frees for half a minute, for the next write, if this package is
imported before pyarrow and pandas, and MIMALLOC_PURGE_DELAY (milliseconds) is not set. Otherwise
taking pages back and clearing them again is up to a fifth of the CPU time of a large write.
"""

import importlib
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hoodie_nb import display

if TYPE_CHECKING:
    from hoodie_nb.api.session import log_path as log_path
    from hoodie_nb.api.session import spark as spark
    from hoodie_nb.api.streams import write_stream as write_stream
    from hoodie_nb.api.tables import Table as Table
    from hoodie_nb.errors import CommitFailed as CommitFailed
    from hoodie_nb.errors import ConcurrentWriter as ConcurrentWriter
    from hoodie_nb.errors import HoodieError as HoodieError
    from hoodie_nb.errors import InvalidConfig as InvalidConfig
    from hoodie_nb.errors import InvalidInput as InvalidInput
    from hoodie_nb.errors import InvalidTable as InvalidTable
    from hoodie_nb.errors import StoreFailed as StoreFailed
    from hoodie_nb.errors import WriteFailed as WriteFailed
    from hoodie_nb.lab.experiments import cost_model as cost_model
    from hoodie_nb.lab.experiments import faults as faults
    from hoodie_nb.lab.experiments import flights as flights
    from hoodie_nb.lab.experiments import log_costs as log_costs
    from hoodie_nb.lab.experiments.race import race as race
    from hoodie_nb.lab.widgets.bloom_view import BloomView as BloomView
    from hoodie_nb.lab.widgets.compare import Compare as Compare
    from hoodie_nb.lab.widgets.controls import Controls as Controls
    from hoodie_nb.lab.widgets.dashboard import Dashboard as Dashboard
    from hoodie_nb.lab.widgets.job_views import FaultPanel as FaultPanel
    from hoodie_nb.lab.widgets.job_views import IndexView as IndexView
    from hoodie_nb.lab.widgets.knob import Knob as Knob
    from hoodie_nb.lab.widgets.replay import Replay as Replay
    from hoodie_nb.lab.widgets.tables import FileGroups as FileGroups
    from hoodie_nb.lab.widgets.tables import Timeline as Timeline
    from hoodie_nb.programs.doctor import doctor as doctor
    from hoodie_nb.spark_format.registration import register as register

__version__ = "0.1.0"
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "30000")  # Spark's workers inherit it
_MODULES = {  # and the names that each has
    "api.session": "log_path spark",
    "api.streams": "write_stream",
    "api.tables": "Table",
    "errors": "CommitFailed ConcurrentWriter HoodieError InvalidConfig InvalidInput InvalidTable "
    "StoreFailed WriteFailed",
    "lab.experiments": "cost_model faults flights log_costs",
    "lab.experiments.race": "race",
    "lab.widgets.bloom_view": "BloomView",
    "lab.widgets.compare": "Compare",
    "lab.widgets.controls": "Controls",
    "lab.widgets.dashboard": "Dashboard",
    "lab.widgets.job_views": "FaultPanel IndexView",
    "lab.widgets.knob": "Knob",
    "lab.widgets.replay": "Replay",
    "lab.widgets.tables": "FileGroups Timeline",
    "programs.doctor": "doctor",
    "spark_format.registration": "register",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_WIDGETS = {n for n, home in _HOMES.items() if home.startswith("lab.") and n[0].isupper()}
_ABSENT = set() if find_spec("ipywidgets") else _WIDGETS  # `help` and Tab would import them
__all__ = sorted({*_HOMES, "__version__"} - _ABSENT)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'hoodie_nb' has no attribute {name!r}")
    home = f"hoodie_nb.{_HOMES[name]}"
    if _HOMES[name] == "lab.experiments":  # the name is a module
        return importlib.import_module(f"{home}.{name}")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        from hoodie_nb.errors import InvalidConfig
        from hoodie_nb.extras import install_extra

        fix = install_extra("lab")
        raise InvalidConfig(f"hn.{name} needs the package {error.name}: run {fix}") from None


def _view(value: object) -> display.View | None:
    """Return the widget for a value; None without the notebook packages."""
    try:
        widgets = importlib.import_module("hoodie_nb.lab.widgets.dashboard")
    except ImportError:
        return None
    found: display.View | None = widgets.view(value)
    return found


display.maker = _view


def __dir__() -> list[str]:
    return sorted(__all__)
