"""How many cores and how much memory this process may use, also inside a container.

| limit | where it is read |
| --- | --- |
| the cores that the process may run on | `sched_getaffinity` (`taskset`, cpusets) |
| CPU time per period | `cpu.max` (cgroup v2), `cpu.cfs_quota_us` (v1) |
| memory | physical memory, `memory.max` (v2), `memory.limit_in_bytes` (v1) |

A cgroup is limited by those above it, too, so all on the path from the root count. In a container
that path may be the host's: then only the root is there, which is the container's own cgroup.
"""

import functools
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_GROUPS = {"": ("sys/fs/cgroup", "sys/fs/cgroup/unified")}  # v2; others: the controller's folder


@functools.cache
def cores(root: Path = _ROOT) -> int:
    """Return how many threads of this process can run at the same time."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    free = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min([free, *_quotas(root)]))


@functools.cache
def memory_bytes(root: Path = _ROOT) -> int:
    """Return the memory that this process may use, with all others in its container."""
    new = _settings(root, "", "memory.max")
    old = _settings(root, "memory", "memory.limit_in_bytes")
    limits = [int(text) for text in (*new, *old) if text.isdigit()]  # others: no limit
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def threads(bytes_each: int = 0) -> int:
    """Return the size of a pool of threads that compute: the cores, or fewer if memory is short.

    `bytes_each` is what a thread may hold; together they hold at most half of the memory.
    """
    fit = memory_bytes() // 2 // bytes_each if bytes_each else cores()
    return max(1, min(cores(), fit))


def _quotas(root: Path) -> Iterator[int]:
    """Yield the limits of CPU time, as cores, rounded up."""
    new = (text.partition(" ")[::2] for text in _settings(root, "", "cpu.max"))
    quotas, periods = (_settings(root, "cpu", f"cpu.cfs_{n}_us") for n in ("quota", "period"))
    for quota, period in (*new, *zip(quotas, periods, strict=False)):
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            yield -(-int(quota) // int(period))


def _settings(root: Path, controller: str, name: str) -> Iterator[str]:
    """Yield the values of a file of this process's cgroup and those above it."""
    path = _path_of_group(root, controller)
    folders = _GROUPS.get(controller, (f"sys/fs/cgroup/{controller}",))
    for folder in folders:
        for group in (path, *path.parents):
            try:
                yield (root / folder / group / name).read_text().strip()
            except OSError:  # no such limit, or a path of the host
                continue


def _path_of_group(root: Path, controller: str) -> PurePosixPath:
    """Return the path of this process's cgroup, relative to the root of its hierarchy."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return PurePosixPath()
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "-", "")
        if controller in controllers.split(",") and (controller or not controllers):
            return PurePosixPath(path.lstrip("/"))
    return PurePosixPath()
