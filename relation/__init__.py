"""Reference implementation of "Ask Self, Ask Others: Relation Is All You Need".

Data flows one way: data, operators (and the Triton `kernels`), model, training, diagnostics and
systems, records, and then the top-level `report` package. `tests/test_architecture.py` checks it.
"""

__version__ = "0.1.0"
