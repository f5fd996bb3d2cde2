"""The report as a site of static pages and as one LaTeX document."""
