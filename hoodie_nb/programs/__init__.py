"""The programs of `python -m hoodie_nb`: the demo, and the check of its table."""
