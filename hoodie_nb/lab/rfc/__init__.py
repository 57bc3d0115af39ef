"""What only teaches: the RFC's own threads and failures, without Spark."""
