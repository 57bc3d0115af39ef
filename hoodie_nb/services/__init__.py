"""Maintenance that the user calls: clean, archive, cluster, restore, savepoints, repair."""
