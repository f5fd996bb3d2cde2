"""Systems benchmarks: complete optimiser updates and single operators (Appendix F to H)."""

import os

# PyTorch's profiler says on stderr whenever it starts and stops, which no reader of a log asked.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
