"""Code in a new Python process, as a user would run it in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_code(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new process in that folder; return its exit code and what it printed."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
