"""Reading rows: scans, filters, SQL text, changes between commits, positions."""
