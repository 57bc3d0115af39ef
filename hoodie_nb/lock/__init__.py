"""One writer at a time: locks across processes and threads, on disks and object stores."""
