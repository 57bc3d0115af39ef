"""The script that writes the generated pages, docs/write_tables.py, as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "write_tables", Path(__file__).parents[1] / "docs" / "write_tables.py"
)
assert _SPEC is not None and _SPEC.loader is not None
WRITER = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(WRITER)
