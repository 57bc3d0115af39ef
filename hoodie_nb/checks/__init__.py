"""fsck: what it finds in folders, rows, records and the archive."""
