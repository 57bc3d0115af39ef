"""Files of a table on a disk or object store; nothing about Hudi's formats."""
