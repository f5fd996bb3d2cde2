"""Structural diagnostics of normalised flow (Appendix B.4 and B.5)."""
