"""Benchmarks of the operators beside their peers: one command, one process, ratios of one run.

A benchmark is one module that makes a `relation.systems.bench.peers.Benchmark`, and its line in
`relation.systems.bench.run`.
"""
