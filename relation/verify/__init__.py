"""Exactness: operators, identities and gradients against float64."""
