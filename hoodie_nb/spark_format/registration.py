"""Makes a Spark session know the format `hoodie_nb`.

Spark imports the top-level modules named `pyspark_...` of the Python that it starts for data
sources, so it finds `pyspark_hoodie_nb`, if that Python has this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let a session read and write tables with the format `hoodie_nb`; once in a session.

    The options are in `hoodie_nb.spark_format.source`, docs/reading.md and docs/spark-options.md.
    A local session runs the format in this Python, also if PYSPARK_PYTHON is not set.
    """
    from hoodie_nb.api.session import require_classic
    from hoodie_nb.spark_format.source import HudiSource

    require_classic(spark)
    spark.dataSource.register(HudiSource)
