"""The cores and the memory that a process may use, as the kernel's files say."""

import os
import subprocess
import sys

import pytest

from hoodie_nb import machine

GB = 1 << 30


def kernel(root, group, files):
    """Write the kernel's files: this process's cgroups, and the limits of some cgroups."""
    files = {"proc/self/cgroup": group, **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def many_cores(monkeypatch):
    """Let the process run on 64 cores, with 256 GB of memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(64)}, raising=False)
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 256 * GB // 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)


V1 = "3:cpuset:/\n2:cpu,cpuacct:/docker/one\n4:memory:/docker/one"
V1_CPU, V1_MEMORY = "sys/fs/cgroup/cpu", "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/", {}, 64),
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000"}, 64),
        ("0::/", {"sys/fs/cgroup/cpu.max": "250000 100000"}, 3),
        ("0::/", {"sys/fs/cgroup/cpu.max": "10000 100000"}, 1),
        ("0::/a/b", {"sys/fs/cgroup/a/cpu.max": "400000 100000"}, 4),
        ("0::/host/path", {"sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        (V1, {f"{V1_CPU}/cpu.cfs_quota_us": "-1", f"{V1_CPU}/cpu.cfs_period_us": "100000"}, 64),
        (V1, {f"{V1_CPU}/cpu.cfs_quota_us": "300000", f"{V1_CPU}/cpu.cfs_period_us": "100000"}, 3),
    ],
    ids=str,
)
def test_the_cores_are_those_of_the_container(tmp_path, many_cores, group, files, cores):
    """A quota of CPU time counts as cores, rounded up; the smallest one on the path decides."""
    assert machine.cores(kernel(tmp_path, group, files)) == cores


@pytest.mark.parametrize(
    ("group", "files", "memory"),
    [
        ("0::/", {}, 256),
        ("0::/", {"sys/fs/cgroup/memory.max": "max"}, 256),
        ("0::/a/b", {"sys/fs/cgroup/a/b/memory.max": str(8 * GB)}, 8),
        ("0::/a/b", {"sys/fs/cgroup/a/memory.max": str(2 * GB)}, 2),
        (V1, {f"{V1_MEMORY}/docker/one/memory.limit_in_bytes": str(4 * GB)}, 4),
        (V1, {f"{V1_MEMORY}/memory.limit_in_bytes": "9223372036854771712"}, 256),
    ],
    ids=str,
)
def test_the_memory_is_that_of_the_container(tmp_path, many_cores, group, files, memory):
    """The smallest limit on the path decides; without one it is the machine's."""
    assert machine.memory_bytes(kernel(tmp_path, group, files)) == memory * GB


def test_a_system_without_these_files_has_the_cores_that_it_says(tmp_path, monkeypatch):
    """As on macOS, which has neither cgroups nor `sched_getaffinity`."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine.cores(tmp_path) == os.cpu_count()


def test_threads_share_the_memory(monkeypatch):
    """There are as many as cores, or as fit into half of the memory, and at least one."""
    monkeypatch.setattr(machine, "cores", lambda: 16)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 4 * GB)
    assert [machine.threads(n) for n in (0, GB // 64, GB // 4, 8 * GB)] == [16, 16, 8, 1]


def test_a_process_on_one_core_writes_in_one_thread():
    """With real affinity, in a process of its own: the pools have one thread."""
    program = """
import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import hoodie_nb
from hoodie_nb import machine
print(machine.cores(), machine.threads(1))
"""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("only Linux can limit a process to some cores")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1"], done.stderr
