"""The format of one base file: Parquet, meta columns, bloom filter, key range, footer."""
