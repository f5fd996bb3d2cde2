"""Configuration: config.yaml and its schema, resolved to one specification a job.

Free of PyTorch, so that planning a campaign and parsing the Snakefile stay fast.
"""

from relation.config.campaign import Campaign, Omitted, resolve
from relation.config.load import SCHEMA_PATH, load_config, validate

__all__ = [
    "SCHEMA_PATH",
    "Campaign",
    "Omitted",
    "load_config",
    "resolve",
    "validate",
]
