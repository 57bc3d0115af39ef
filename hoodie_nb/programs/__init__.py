"""What `python -m hoodie_nb` runs: the demo, and the check of its table."""
