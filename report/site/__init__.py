"""The report as a site of static pages, which need neither a network nor a server."""

from report.site.content import Content, gather
from report.site.render import render_site

__all__ = ["Content", "gather", "render_site"]
