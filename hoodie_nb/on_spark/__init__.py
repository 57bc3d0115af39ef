"""Writes and reads in Spark's tasks, and on its driver."""
