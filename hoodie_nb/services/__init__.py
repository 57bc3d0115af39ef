"""Table maintenance that the user calls, above the writer: repair."""
