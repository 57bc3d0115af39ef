"""What forbids or limits a write to a table as it is on disk; the open table, to write."""
