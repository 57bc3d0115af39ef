"""Ctrl-C during a job or a batch write on Spark: what is cancelled, and when it ends."""

from __future__ import annotations

import contextlib
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


@contextlib.contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Turn Ctrl-C into a clean stop: pyspark's own handler would cancel the running batch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: Callable[..., Any] | int | None = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )
    try:
        yield
    except KeyboardInterrupt:
        stop()
        raise KeyboardInterrupt("the job was stopped between two batches") from None
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def cancel_on_interrupt(context: SparkContext) -> Iterator[None]:
    """On Ctrl-C, cancel the Spark jobs that were started inside; the caller rolls back."""
    tag = f"hoodie_nb-{uuid.uuid4().hex}"
    context.addJobTag(tag)
    try:
        yield
    except KeyboardInterrupt:
        for _ in range(3):  # py4j may lose the next connection, too
            with contextlib.suppress(Exception):
                context.cancelJobsWithTag(tag)
                break
        raise KeyboardInterrupt("the write was interrupted: nothing was written") from None
    finally:
        with contextlib.suppress(Exception):
            context.removeJobTag(tag)
