"""Configuration: config.yaml, checked by its types, resolved to one specification a job.

Free of PyTorch, so that planning a campaign and parsing the Snakefile stay fast.
"""

from relation.config.campaign import Campaign, Omitted, resolve
from relation.config.load import load_config

__all__ = ["Campaign", "Omitted", "load_config", "resolve"]
