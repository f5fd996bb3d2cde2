"""Sphinx configuration of `make site`: README, docs/, the other pages and the API reference."""

import shutil
from pathlib import Path

project = "Relation"
REPORT = Path(__file__).parents[1] / "results" / "published" / "report"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode"]
# The sources are the repository's own pages, so Sphinx checks links between them and to files.
root_doc = "README"
PAGES = [
    "docs/replication", "docs/preregistration", "docs/methods", "docs/campaigns", "docs/library",
    "docs/extending", "docs/development", "relation/ops/README", "kernels/README", "kernels/**",
    "results/README", "docs/api", "CHANGELOG",
]  # fmt: skip
include_patterns = [f"{page}.md" for page in ("README", *PAGES)] + ["docs/api/*.rst"]
html_additional_pages = {"index": "home.html"}  # redirects to README
html_theme = "furo"
html_title = "Relation"
html_static_path, html_css_files = ["_static"], ["pages.css"]
html_show_copyright = False
templates_path = ["_templates"]  # report.html: a link to the report
_FURO = ("brand", "search", "scroll-start", "navigation", "scroll-end")
html_sidebars = {"**": [f"sidebar/{part}.html" for part in _FURO]}
html_sidebars["**"].insert(3, "report.html")
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["docutils", "image.not_readable"]  # docstrings are plain text
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"


def setup(app):
    """Add the list of pages to README, for the sidebar, and copy the report into the site."""
    listed = "\n\n```{toctree}\n:hidden:\n:glob:\n\n" + "\n".join(PAGES) + "\n```\n"

    def add_list(_, name, text):
        if name == root_doc:
            text[0] += listed

    def add_report(_, error):
        """Copy the report into the site, and link each of its pages back to the documentation."""
        if error is None:
            copy = Path(app.outdir, "report")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(REPORT, copy)
            for page in copy.glob("*.html"):
                text = page.read_text(encoding="utf-8")
                link = '<a href="../README.html">Documentation</a>\n</nav>'
                page.write_text(text.replace("</nav>", link, 1), encoding="utf-8")

    app.connect("source-read", add_list)
    app.connect("build-finished", add_report)
