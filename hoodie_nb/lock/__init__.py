"""One writer at a time: the lock of a table, on disks and object stores."""
