"""Stores to learn with: slow, frail, and an S3 server on this machine."""
