"""Columns and types, and conversion of values. Which columns a table has: `definition`."""
