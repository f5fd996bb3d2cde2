"""A campaign: config.yaml resolved to specifications, its jobs, and what becomes of their records.

Free of PyTorch where the Snakefile needs it, so that planning a campaign stays fast.
"""
