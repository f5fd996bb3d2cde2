"""Benchmarks: whole updates, operators, complexity and decoding, each in a module."""
