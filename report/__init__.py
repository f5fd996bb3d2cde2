"""The report of a campaign, from its Parquet records and the values that the paper prints.

``table.cells`` joins every value with the paper's, ``claims.judge`` gives the verdicts,
``figures.draw`` draws the figures and ``render`` formats the tables. ``overview`` has the contents
of the first page; ``study`` and ``readings`` go beyond the paper. ``site.build`` writes the pages.
Nothing here runs a model.
"""
