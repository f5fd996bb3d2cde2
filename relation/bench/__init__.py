"""Benchmarks: one module each for whole updates, operators, complexity and decoding."""
