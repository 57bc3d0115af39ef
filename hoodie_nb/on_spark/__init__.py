"""The operators in Spark's tasks, or collected by its driver; reads on Spark."""
