"""What the supported versions of PySpark, 4.1 to 4.3, name or call differently.

| | in 4.1 | from 4.2 |
| --- | --- | --- |
| times in an Arrow schema are in UTC | always | if `timezone` says so |
| a source is asked to prepare for the trigger `availableNow` | no | yes |

**Caveats**: PySpark 4.2 and 4.3 warn about pandas 3 wherever they meet it, although all that is
used here works with it: a session of `hn.spark` hides that. *Source:* the modules of pyspark.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing: this Spark does not ask for it."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["SupportsTriggerAvailableNow", "hide_pandas_warning", "schema_in_arrow"]


_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters


def schema_in_arrow(schema: StructType) -> pa.Schema:
    """Return a schema of Spark in Arrow, times in UTC; PySparkException for a type."""
    if _TAKES_ZONE:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def hide_pandas_warning() -> None:
    """Hide what PySpark says of pandas 3 at each place that uses it."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
