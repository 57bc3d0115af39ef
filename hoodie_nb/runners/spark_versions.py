"""What the supported versions of PySpark, 4.0 to 4.3, name or call differently.

| | in 4.0 | in 4.1 | from 4.2 |
| --- | --- | --- | --- |
| times in an Arrow schema are in UTC | always | always | if `timezone` says so |
| class of a stream's writer of Arrow batches | none | has a name | has a name |
| a source is asked to prepare for `availableNow` | no | no | yes |
| rows are sent to the task that a column numbers | none | `repartitionById` | `repartitionById` |
| a format that Spark has found is registered | refused | replaced | replaced |
| Java package of the checkpoint file managers | `streaming` | `checkpointing` | `checkpointing` |

**Caveats**: PySpark 4.2 and 4.3 warn about pandas 3 wherever they meet it, although all that is
used here works with it: a session of `hn.spark` hides that. *Source:* the modules of pyspark.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import datasource as spark_api
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing: this Spark does not ask for it."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
except ImportError:

    class StreamArrowWriter(  # type: ignore[no-redef,misc]
        spark_api.DataSourceStreamWriter, spark_api.DataSourceArrowWriter
    ):
        """A stream's writer to which Spark gives batches, as it does to a batch writer of them."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["StreamArrowWriter", "SupportsTriggerAvailableNow"]  # and what is defined below

_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters
_SEED = 42  # of the hash by which Spark chooses a row's task
_MOVED = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming."
    f"{'checkpointing.' if _MOVED else ''}FileSystemBasedCheckpointFileManager"
)


def schema_in_arrow(schema: StructType) -> pa.Schema:
    """Return a schema of Spark in Arrow, times in UTC; PySparkException for a type."""
    if _TAKES_ZONE:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def sent_to_tasks(rows: DataFrame, tasks: int, column: str) -> DataFrame:
    """Return rows in the tasks that an integer column numbers, from 0.

    Spark 4.0 sends rows by a hash only, so a task's number is replaced by one with its hash.
    """
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(tasks, F.col(column))
    jvm: Any = rows.sparkSession._jvm
    hashed = jvm.org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt
    number: dict[int, int] = {}
    for candidate in itertools.count():
        number.setdefault(hashed(candidate, _SEED) % tasks, candidate)
        if len(number) == tasks:
            break
    numbers = F.array(*(F.lit(number[task]) for task in range(tasks)))
    return rows.repartition(tasks, F.get(numbers, F.col(column)))


def register_source(spark: SparkSession, source: type[spark_api.DataSource]) -> None:
    """Register a format in a session, unless its Spark has found it and keeps what it found."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def hide_pandas_warning() -> None:
    """Hide what PySpark says of pandas 3 at each place that uses it."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
