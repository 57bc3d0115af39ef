"""How a write becomes visible, and recovery. Rows are never read or written here."""
