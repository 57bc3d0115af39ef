"""The words a user types: Table, write_stream, the session."""
