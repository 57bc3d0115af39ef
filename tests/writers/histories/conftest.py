"""Tables in memory, as in tests/core, whose modules are importable by name here, too."""

from core.conftest import new_folder, tmp_path

__all__ = ["new_folder", "tmp_path"]
