"""Storage: the interface and its fences; local disks, object stores, addresses, checksums."""
