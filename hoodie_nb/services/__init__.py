"""Maintenance by hand: its arguments, dry runs, results. Plans are in `actions`."""
