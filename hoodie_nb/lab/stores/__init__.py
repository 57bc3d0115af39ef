"""Stores to learn with: with delays, with an error or a crash, and an S3 server."""
