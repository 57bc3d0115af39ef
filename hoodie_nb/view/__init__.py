"""What a reader sees: which files count, partitions, moments; whether a view is still true."""
