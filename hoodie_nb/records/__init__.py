"""Durable records beside the timeline, of checkpoints; formats and lists, no protocol."""
