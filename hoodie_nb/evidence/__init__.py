"""What forbids or limits a write to a table as it is on disk (it only reads it); the open table."""
