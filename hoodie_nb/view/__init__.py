"""Which files and commits a reader sees, without reading rows (that is `reading`)."""
