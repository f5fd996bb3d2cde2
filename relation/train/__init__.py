"""Training: module `run` makes a run from its specification; `step` computes one update."""
