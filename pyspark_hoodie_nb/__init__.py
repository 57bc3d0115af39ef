"""Spark finds the format `hoodie_nb` here: it imports top-level modules named `pyspark_...`.

The import must not fail: Spark would then find no format that is written in Python.
"""

import sys
from typing import NoReturn

from pyspark.sql.datasource import DataSource

try:
    from hoodie_nb.spark_format.source import HudiSource as DefaultSource
except ImportError as error:
    _LACKS = str(error)

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """What Spark finds in a Python that lacks a package: any use says which."""

        @classmethod
        def name(cls) -> str:
            """Return the name of the format."""
            return "hoodie_nb"

        def _refuse(self, *_: object) -> NoReturn:
            raise ImportError(
                f"the Python that Spark starts for the format hoodie_nb, {sys.executable}, cannot "
                f"run it: {_LACKS}. Set PYSPARK_PYTHON to a Python with hoodie-nb and its "
                "dependencies before the session starts, or call hn.register(spark) in a local "
                "session"
            )

        schema = writer = streamWriter = _refuse  # type: ignore[assignment]


__all__ = ["DefaultSource"]
