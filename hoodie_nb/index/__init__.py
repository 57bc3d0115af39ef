"""Which file group has a record key: bloom filters in files, the state index, its maintenance."""
