"""Rows to files: intake, assigner, buffer, bucket writer, merge; no timeline, no Spark."""
