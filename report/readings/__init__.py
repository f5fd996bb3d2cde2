"""Readings of the paper: what each gives, how far they can be told apart, which one is chosen.

`docs/readings.md` states the rules in words. Pure functions on the frames of the readings' records:
``rule`` chooses, ``values`` computes a value a pair, ``statistics`` compares readings.
"""
