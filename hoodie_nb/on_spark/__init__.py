"""The runner on Spark's executors and driver, and reads on Spark."""
