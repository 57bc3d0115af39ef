"""Jobs without Spark that only teach: the RFC's own threads, failures and source."""
