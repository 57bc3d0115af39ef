"""Random histories on real Spark against a model: a few; `make spark-histories` runs 200."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark_histories import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.parametrize("number", range(4))
def test_random_histories_on_spark_end_in_the_model(spark: SparkSession, number: int) -> None:
    """After any kills, restores and foreign writes, rows, index and files are right."""
    run(spark, number)
