"""`placement=`: driver or executors for each micro-batch, also after one proved too large.

A shuffle and Python workers cost more than writing a small batch here. `auto` decides for each
micro-batch, by what the ones before it really were:

| | the driver writes a batch that is expected to have |
| --- | --- |
| the master is local: driver and executors are one machine | at most `task_max_size`, and an \
eighth of the JVM's heap, which collects it |
| a cluster: the driver is one small process of many | `_TINY` of that, if the last batches wrote \
at most `task_max_size` |

A batch is expected to have Spark's estimate of it times the largest factor by which those of the
last `_REMEMBERED` were wrong, at least 1 if it is far larger than theirs: most of a tiny file is
its footer. The first batch of a start has only its estimate. A batch of a source without estimates
(Kafka, rate, sockets; not files) is expected to be like the largest of the last ones, and the first
is left to the executors. After small batches one may come that does not fit into the JVM: its
limit is a quarter of the others'. Unless `spark.driver.maxResultSize` is a small part of the heap,
each task then returns no more rows than such a batch may have (`bounded`); this costs a plan of its
own, and so 30 ms or more of each batch.

*Bounds.* A batch that turns out to have more than `spark.driver.maxResultSize`, or `_ROOM` times
its limit, is dropped before this process copies it, and the executors write it.
Index, files and protocol do not depend on the placement, so a batch that runs again may be written
in the other place.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hoodie_nb.buckets.pipelines import AUTO, Pipeline
from hoodie_nb.events import Emit
from hoodie_nb.on_spark.taken import Taken, TooLarge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DRIVER = "driver"
EXECUTORS = "executors"
_REMEMBERED = 3
_FAR = 2
_TINY = Fraction(1, 64)
_ROOM = 2
_HEAP_SHARE = 8
_BLIND_SHARE = 32
_RESULT_SHARE = 4
_UNKNOWN = 1 << 62  # Spark's estimate of a source that has none is the greatest long


class Placing:
    """Decides where each micro-batch of a job is written, and remembers what the last ones had."""

    def __init__(self, placement: str, pipeline: Pipeline, task_max_bytes: int, emit: Emit) -> None:
        self._placement = placement
        self._emit = emit
        self._most = task_max_bytes
        if pipeline.shuffle == "partition":  # its tasks exist on Spark only
            self._placement = EXECUTORS
        self._last: deque[Taken] = deque(maxlen=_REMEMBERED)
        self._driver: tuple[bool, int, int] | None = None  # local; bytes of heap and of results
        # the newest batch, and where it is written
        self.newest = Taken()
        self.where = ""

    def here(self, batch: DataFrame, number: int) -> bool:
        """Whether a micro-batch is written in this process; begins its record, `newest`."""
        self.newest = Taken()
        if self._placement != AUTO:
            self._note(number, self._placement)
            return self.where == DRIVER
        if self._driver is None:  # each call of the JVM costs a small batch a millisecond
            local = str(batch.sparkSession.sparkContext.master).startswith("local")
            self._driver = (local, _heap_bytes(batch), _result_bytes(batch))
        local = self._driver[0]
        heap = self._driver[1]
        estimate = _estimate(batch)
        share = _HEAP_SHARE if estimate is not None else _BLIND_SHARE
        most = min(self._most, heap // share)
        limit = most if local else int(most * _TINY)
        expected = self._expected(estimate)
        fits = expected is not None and expected <= limit
        if not local:
            fits = fits and all(taken.written_bytes <= self._most for taken in self._last)
        self._note(number, DRIVER if fits else EXECUTORS, expected)
        self.newest = Taken(estimate=estimate)
        if fits:
            self.newest.limit_bytes = _ROOM * limit
            if estimate is None and self._driver[2] > heap // _RESULT_SHARE:
                self.newest.limit_rows = 1 + _ROOM * limit // self._row_bytes()
        return fits

    @contextlib.contextmanager
    def unless_too_large(self, number: int) -> Iterator[None]:
        """With `auto`, go on after TooLarge: the executors write the batch."""
        try:
            yield
        except TooLarge:
            if self._placement != AUTO:
                raise
            self._note(number, EXECUTORS, self.newest.size_bytes or None)
            self.newest = Taken(estimate=self.newest.estimate)

    @property
    def last_was_empty(self) -> bool:
        """Whether the micro-batch before the newest had no rows."""
        return bool(self._last) and not self._last[-1].rows

    def remember(self) -> Taken:
        """Let the newest micro-batch, which was written, count for the next ones; return it."""
        self._last.append(self.newest)
        return self.newest

    def _note(self, number: int, placement: str, expected: int | None = None) -> None:
        self.where = placement
        self._emit("batch_placed", batch=number, placement=placement, expected_bytes=expected)

    def _expected(self, estimate: int | None) -> int | None:
        """Return the bytes that a batch is expected to have; None if nothing is known."""
        if estimate is None:
            return max((taken.size_bytes for taken in self._last if taken.rows), default=None)
        known = [(taken.size_bytes, taken.estimate) for taken in self._last if taken.estimate]
        if not known:
            return estimate
        factor = max(Fraction(had, estimated) for had, estimated in known)
        larger = estimate > _FAR * max(estimated for _, estimated in known)
        return int((max(factor, Fraction(1)) if larger else factor) * estimate)

    def _row_bytes(self) -> int:
        """Return the bytes of a row of the last batch whose rows were the widest."""
        return max(-(-taken.size_bytes // taken.rows) for taken in self._last if taken.rows)


def _heap_bytes(batch: DataFrame) -> int:
    """Return the memory of the driver's JVM."""
    jvm: Any = batch.sparkSession._jvm
    return int(jvm.java.lang.Runtime.getRuntime().maxMemory())


def _result_bytes(batch: DataFrame) -> int:
    """Return the bytes of results after which Spark ends a job."""
    conf: Any = batch.sparkSession.sparkContext._jsc.sc().conf()
    return int(conf.getSizeAsBytes("spark.driver.maxResultSize", "1g")) or _UNKNOWN


def _estimate(batch: DataFrame) -> int | None:
    """Return Spark's estimate of a batch in bytes, None if its source has none."""
    found = int(str(batch._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    return found if found < _UNKNOWN else None
