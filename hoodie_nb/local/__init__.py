"""The operators in this process, without Spark: batches, `update`, `merge`, rows written again."""
