"""Ctrl-C while waiting for a job: the job ends between two batches."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


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
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
