"""Rows of any kind become keyed rows; what is invalid is refused or set aside."""
