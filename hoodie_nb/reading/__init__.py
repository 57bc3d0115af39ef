"""Rows out of a table: snapshots, filters, changes, SQL text. Which files count is in `view`."""
