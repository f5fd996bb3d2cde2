"""Structural diagnostics of normalised flow (Appendix B.4 and B.5)."""

from relation.diagnostics.metrics import (
    distance_mass,
    effective_rank,
    energy_dims,
    sink_mass,
    stable_rank,
    top_singular_energy,
)

__all__ = [
    "distance_mass",
    "effective_rank",
    "energy_dims",
    "sink_mass",
    "stable_rank",
    "top_singular_energy",
]
