"""Optional packages: which extra has them, and the error that says how to install them.

The extras (`demo`, `notebooks`, `s3`) of an installed package are installed by its name, which
keeps its version; those of a clone from its folder.
"""

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path


def install(*arguments: str) -> str:
    """Return the command that installs packages for this Python, also if uv made it without pip."""
    python = shlex.quote(sys.executable)
    with_uv = find_spec("pip") is None and shutil.which("uv")
    tool = f"uv pip install --python {python}" if with_uv else f"{python} -m pip install"
    return " ".join([tool, *map(shlex.quote, arguments)])


def install_extra(extra: str) -> str:
    """Return the command that installs an extra of this package."""
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return install("-e", f"{clone}[{extra}]")
    return install(f"hoodie-nb[{extra}]")
