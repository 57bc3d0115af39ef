"""Where operators run: in this process, in Spark tasks, as a streaming job."""
