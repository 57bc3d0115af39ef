"""Durable records of checkpoints beside the timeline, for `commit` and `index`; no protocol."""
