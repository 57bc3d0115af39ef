"""The demo and the check of its table; all other commands are in `hoodie_nb.__main__`."""
