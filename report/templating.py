"""What the pages and the document share of Jinja."""

from pathlib import Path
from typing import Any

import jinja2

TEMPLATES = Path(__file__).parent / "templates"


def environment(**options: Any) -> jinja2.Environment:
    """The project's templates; an unknown name is an error, and a tag leaves no line behind."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
