"""Runs that show something: inputs, trials, the race, experiments, faults, the cost model."""
