"""Streams: the job, its micro-batches, where they run, and Spark's checkpoint folder."""
