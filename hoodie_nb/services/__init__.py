"""What keeps a table in order besides its writes."""
