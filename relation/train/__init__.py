"""Training: `run` is a run from its specification to its records, `step` one update."""
