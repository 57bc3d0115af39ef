"""A running stream: its job, micro-batches, placement, Spark's query and checkpoint folder."""
