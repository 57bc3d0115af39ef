"""Durable records of checkpoints and staged rows, for `commit` and the runners; no protocol."""
