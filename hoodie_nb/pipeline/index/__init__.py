"""Where a record key lies already: the indexes that the assigner asks."""
