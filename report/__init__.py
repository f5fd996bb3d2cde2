"""Tables and figures of a campaign, from its Parquet records and the paper's printed values.

``cells.build`` sets every value beside the paper's, ``figures.draw_figures`` draws the pictures,
``render.render_tables`` prints both to LaTeX and HTML. Nothing here computes a model.
"""
