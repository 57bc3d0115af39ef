"""Experiments: inputs, trials, the race, the cost model, faults."""
