"""Writes in this process: operators, batches, conditional rewriting."""
