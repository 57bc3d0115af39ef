"""Spark's StreamingQuery of a stream: start, cancelling its jobs, failures, stop.

A query that failed is started again in the same checkpoint folder, with the same id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException

from hoodie_nb.errors import ConcurrentWriter, InvalidConfig, WriteFailed
from hoodie_nb.on_spark.stages import stop_started
from hoodie_nb.on_spark.task_errors import first_cause
from hoodie_nb.stream.checkpoint_folder import CheckpointFolder
from hoodie_nb.stream.settings import StreamSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class SparkQuery:
    """A streaming query whose micro-batches are given to a function."""

    started: StreamingQuery  # absent until Spark has answered the first start

    def __init__(
        self, stream: DataFrame, folder: CheckpointFolder, settings: StreamSettings
    ) -> None:
        self._stream = stream
        self._folder = folder
        self._settings = settings

    def refuse_shared_folder(self) -> None:
        """Raise ConcurrentWriter if a running query uses the checkpoint folder: Spark stops it."""
        query_id = self._folder.query_id()
        if any(query.id == query_id for query in self._stream.sparkSession.streams.active):
            raise ConcurrentWriter(
                f"the checkpoint folder {self._folder.path} is used by a running query (id "
                f"{query_id}): stop that one first, or choose another folder for this stream"
            )

    def start(self, on_batch: Callable[[DataFrame, int], None]) -> None:
        """Start the query; Spark calls `on_batch` in its own thread, maybe before this returns.

        Raises InvalidConfig if Spark refuses the folder or the stream.
        """
        self._folder.clear_torn_start()
        place = f"file://{self._folder.path}"  # else it is a path of fs.defaultFS
        writer = self._stream.writeStream.outputMode(self._settings.output_mode)
        writer = writer.option("checkpointLocation", place)
        writer = writer.foreachBatch(on_batch).trigger(**self._settings.trigger)
        try:
            self.started = writer.start()
        except Py4JJavaError as error:
            raise InvalidConfig(
                f"Spark cannot start a stream with the checkpoint folder {self._folder.path}: "
                f"{first_cause(str(error))}. Let this user read and write all of it, or choose "
                "another folder"
            ) from None
        except AnalysisException as error:
            mode = self._settings.output_mode
            cause = first_cause(str(error))
            hint = " (an aggregation may need output_mode='update')" if mode == "append" else ""
            raise InvalidConfig(
                f"Spark cannot run this stream in {mode} mode{hint}: {cause}"
            ) from None

    @property
    def active(self) -> bool:
        """Whether Spark is still running it."""
        return bool(self.started.isActive)

    def failure(self) -> WriteFailed | None:
        """Return the error of a query that failed outside the writer, None if it did not fail."""
        found = self.started.exception()
        if found is None:
            return None
        line = str(found).splitlines()[0][:300]
        return WriteFailed(f"the streaming query failed outside the writer: {line}")

    def cancel_jobs(self) -> None:
        """Cancel the Spark jobs of the batch that runs."""
        self._stream.sparkSession.sparkContext.cancelJobGroup(str(self.started.runId))

    def cancel_jobs_and_next(self) -> None:
        """Cancel the Spark jobs of the batch that runs; between two batches, those of the next."""
        context = self._stream.sparkSession.sparkContext
        context._jsc.sc().cancelJobGroupAndFutureJobs(str(self.started.runId))

    def stop(self) -> None:
        """End the query, wherever it is."""
        with contextlib.suppress(Exception):  # a query that ended by an error of ours raises here
            self.started.stop()

    def abandon(self, kind: type[BaseException] | None) -> None:
        """Stop the query after a start that failed with this kind of error.

        If the start was interrupted, the JVM may not have answered, and start the query later.
        """
        if hasattr(self, "started"):
            self.stop()
        elif kind is not None and not issubclass(kind, Exception):
            with contextlib.suppress(Exception):
                stop_started(self._stream, self._folder.query_id, within_s=3)
