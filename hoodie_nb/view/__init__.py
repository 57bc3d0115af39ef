"""Which files and commits a reader sees; the handle of a reader. Rows are read in `reading`."""
