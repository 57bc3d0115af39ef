"""How a write becomes visible: lock, journal, coordinator, checkpoint protocol."""
