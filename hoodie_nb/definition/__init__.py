"""What a table is: its properties, rules, keys and columns."""
