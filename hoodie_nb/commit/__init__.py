"""How a write becomes visible: lock, coordinator, checkpoint protocol and its durable records."""
