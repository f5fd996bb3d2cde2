"""Probes beyond the paper's tables: what a trained mixer can do that a loss does not show."""
