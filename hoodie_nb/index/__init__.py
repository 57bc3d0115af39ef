"""Where a record key lies: blooms on files, the state index and its upkeep."""
