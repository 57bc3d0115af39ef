"""Whether the process that holds a lease has ended: only what is certain counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hoodie_nb.lock.process import has_ended, process_identity

_PROGRAM = """
import os, sys
from hoodie_nb.lock.process import has_ended
os.setgid(65534)
os.setuid(65534)
print(has_ended(sys.argv[1:]))
"""


def test_a_process_that_may_not_be_looked_at_lives() -> None:
    """Another user's process, which `/proc` with `hidepid` does not show, has not ended."""
    holder = process_identity(os.getpid())
    assert holder is not None
    script = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", _PROGRAM, *holder]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the rights to mount /proc")
    assert found.stdout == "False\n"


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    """It is a zombie until its parent asks how it ended; a Jupyter kernel may never do so."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_identity(child.pid)
    assert identity is not None and not has_ended(identity)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    try:
        assert has_ended(identity)
    finally:
        child.communicate()


_THREADS = """
import ctypes, sys, threading
threading.Thread(target=lambda: (print("lives", flush=True), sys.stdin.read())).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_may_live() -> None:
    """The kernel calls it a zombie, too, while its other threads write."""
    command = [sys.executable, "-c", _THREADS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"lives\n"
        while b") Z" not in Path(f"/proc/{child.pid}/stat").read_bytes():
            assert child.poll() is None
        identity = process_identity(child.pid)
        assert identity is not None and not has_ended(identity)
        child.kill()


def test_only_an_unknown_id_or_another_start_is_an_end() -> None:
    """The id of a live process, with another start, is an end; unreadable ids are none."""
    machine, pid, began = process_identity(os.getpid()) or ["", "", ""]
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    ended = [
        has_ended([machine, p, b]) for p, b in [(pid, began), (pid, "1"), (str(child.pid), "1")]
    ]
    assert ended == [False, True, True]
    assert not any(has_ended([machine, p, "1"]) for p in ("x", "-1", "9" * 30))
