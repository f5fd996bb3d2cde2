"""The report of a campaign, from its Parquet records and the values that the paper prints.

``table.cells`` sets every value beside the paper's, ``claims.judge`` gives the verdicts,
``figures.draw`` the pictures and ``render`` the tables; ``overview`` has the first page, ``study``
and ``readings`` what goes beyond the paper; ``site.build`` makes the pages of all. Nothing here
computes a model.
"""
