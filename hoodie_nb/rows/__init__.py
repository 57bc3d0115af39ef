"""Rows in memory: sorting, folding by the merge rule, composing, saved rows."""
