"""Maintenance that the user calls: clean, archive, compact, restore, savepoints, repair."""
