"""What a table is, as `hoodie.properties` say: key, partitioning, ordering, columns."""
