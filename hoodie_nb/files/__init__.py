"""Base files: Parquet with Hudi's meta columns, bloom filter, key range and footer."""
