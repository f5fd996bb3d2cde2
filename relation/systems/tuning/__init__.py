"""The search for FlashRelation's launches on the GPU at hand: candidates, times, correctness.

It writes entries for kernels/flash_relation/launches.toml and leaves that file to its reader.
"""
