"""What the report's rules run: cells, figures and pages, each from Parquet to files.

One module a rule, so that a rule's code hash holds what it rests on and nothing else.
"""
