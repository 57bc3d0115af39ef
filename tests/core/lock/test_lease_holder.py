"""Whether the process that holds a lease has ended: only what is certain counts."""

from __future__ import annotations

import os
import subprocess
import sys

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
