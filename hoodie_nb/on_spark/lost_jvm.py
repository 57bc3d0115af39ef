"""A dead JVM: detected, and cleared from pyspark so that a new session can start.

pyspark never gives up its connection to the JVM: every later call is refused, including the calls
that stop the session or start a new one.
"""

import subprocess
from contextlib import suppress

from pyspark import SparkContext
from pyspark.sql import SparkSession

JVM_IS_GONE = (
    "Spark's JVM has ended; it may have been killed because memory ran out. Get a new session from "
    "hn.spark(), which starts another JVM, and start the job again: committed and "
    "prepared checkpoints are kept, and the source sends all other rows again"
)


def jvm_is_gone(within_s: float = 0) -> bool:
    """Whether the JVM that this process started has ended, or ends within some seconds."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
    return process is not None and process.poll() is not None


def forget_jvm() -> None:
    """Clear pyspark's references to an ended JVM: stopping its session would fail."""
    context = SparkContext._active_spark_context
    gateway = SparkContext._gateway
    if context is not None:
        context._accumulatorServer.shutdown()
    if gateway is not None:
        gateway.shutdown_callback_server(raise_exception=False)
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
