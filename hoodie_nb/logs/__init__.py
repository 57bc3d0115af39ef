"""Log files of merge-on-read tables: names, blocks, rows, and the newest version of each key."""
