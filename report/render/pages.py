"""The files of a site that every campaign has.

Free of the paper's values, so that a damaged one stops the jobs that read it and not the workflow.
"""

# The pages of the bar at the top, in its order.
SECTIONS = (
    ("index.html", "Overview"),
    ("claims.html", "Claims"),
    ("readings.html", "Readings"),
    ("tables.html", "Tables"),
    ("figures.html", "Figures"),
    ("beyond.html", "Beyond the paper"),
    ("runs.html", "Runs"),
    ("pipeline.html", "Pipeline"),
    ("assumptions.html", "Assumptions"),
    ("checklist.html", "Checklist"),
)
PAGES = tuple(name for name, _ in SECTIONS)
ASSETS = ("style.css", "report.js")
