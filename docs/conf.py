"""The documentation as `make site` builds it: README, docs/ and the API reference."""

project = "Relation"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "Relation"
templates_path = ["_templates"]  # report.html: a link to the report, which `make site` adds
_FURO = ("brand", "search", "scroll-start", "navigation", "scroll-end")
html_sidebars = {"**": [f"sidebar/{part}.html" for part in _FURO]}
html_sidebars["**"].insert(3, "report.html")
exclude_patterns = ["figures", "_templates"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# Links to folders and source files of the repository; docstrings are plain text.
suppress_warnings = ["myst.xref_missing", "docutils", "image.not_readable"]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
