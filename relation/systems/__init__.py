"""Systems benchmarks: complete optimiser updates and single operators (Appendix F to H)."""
