"""Writes in this process, without Spark: batches, `update`, `merge`; operators of all runners."""
