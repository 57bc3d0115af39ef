"""Columns and types: schemas, their Avro, conversion of values, merge modes."""
