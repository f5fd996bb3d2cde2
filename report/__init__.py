"""Tables and figures of a campaign, from its Parquet records and the paper's printed values.

``judge.cells.build`` sets every value beside the paper's, ``figures.draw_figures`` draws the
pictures, ``render.site`` and ``render.document`` print both as HTML and LaTeX. Nothing here
computes a model.
"""
