"""What a write must check first: other engines, lost files, partitions; the write handle."""
