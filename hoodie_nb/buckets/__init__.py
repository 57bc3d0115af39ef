"""The RFC's assigner and bucket writer: keyed rows to staged base files."""
