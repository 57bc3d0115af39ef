"""What is on disk: storage, timeline, properties, base files, file groups, reading, rollback."""
