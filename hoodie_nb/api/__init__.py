"""What a user types: Table, write_stream, the session, and the checks of their arguments."""
