"""Training: schedule, optimiser, one update, the run with its resume state, and evaluation."""
