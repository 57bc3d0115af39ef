"""Rows in memory, as Arrow: sort, fold, merge rule, spill. No table and no base file here."""
