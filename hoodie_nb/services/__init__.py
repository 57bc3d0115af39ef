"""Maintenance that the user calls, with dry runs and results. Plans are in `actions`."""
