"""CPU seconds and memory of a process with all its descendants: Python, its JVM, their workers.

CPU includes descendants that ended, as their parents have waited for them. Memory is resident
memory, sampled, so pages that processes share count for each.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

import psutil

_SAMPLE_S, _SAMPLES_PER_LISTING = 0.05, 10


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that the tree has used since its start."""
    total = 0.0
    for process in _tree(pid):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # own and of children that ended; user and system
    return total


@contextmanager
def peak_memory(pid: int) -> Iterator[list[int]]:
    """Sample the tree's resident bytes while the block runs; the yielded list holds the peak."""
    peak, ended = [0], threading.Event()

    def look(tree: list[psutil.Process]) -> None:
        peak[0] = max(peak[0], sum(map(_resident, tree)))

    def sample() -> None:
        for number in count():
            if number % _SAMPLES_PER_LISTING == 0:
                tree = _tree(pid)
            look(tree)
            if ended.wait(_SAMPLE_S):
                return look(_tree(pid))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        ended.set()
        sampler.join()


def suspend(pid: int) -> None:
    """Stop the tree until `resume`."""
    _each(pid, psutil.Process.suspend)


def resume(pid: int) -> None:
    """Let the tree continue."""
    _each(pid, psutil.Process.resume)


def kill(pid: int) -> None:
    """End the tree, suspended or not."""
    _each(pid, psutil.Process.kill)


def _each(pid: int, act: Callable[[psutil.Process], None]) -> None:
    for process in _tree(pid):
        with suppress(psutil.Error):
            act(process)


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return process.memory_info().rss
    return 0
