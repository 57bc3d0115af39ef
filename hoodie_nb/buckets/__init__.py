"""Keyed rows to staged base files: assigner, bucket writer, merge. Nothing is committed here."""
