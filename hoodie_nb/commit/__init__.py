"""The RFC's coordinator: how a write becomes visible, and what happens after a crash."""
