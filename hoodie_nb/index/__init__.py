"""Which file group has a record key: bloom index, state index. Chosen in `local/operators`."""
