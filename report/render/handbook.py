"""The published site: shipped reports, documentation and reference in one folder.

Any static server serves it, and it opens from the disk. A page or file of the project lies there
under its path in the project, so that pages link to each other as they do in a clone.
"""

import html
import os.path
import re
import shutil
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse

from relation.errors import InputError
from relation.pipeline.hashes import PROJECT
from report.render.environment import html_environment
from report.render.links import check_links
from report.render.site import write_assets

PUBLISHED = Path("results/published")
_MADE = ".relation-site"  # the mark of a folder that may be made anew
_REFERENCE = "reference/index.html"
# What docs/library.md offers; the rest is the reproduction's. Modules after an exclamation mark are
# left out, by a pattern: a package's own page has what it offers of them.
LIBRARY = (
    "relation.ops", "relation.kernels", r"!relation\.(ops|kernels)\.", "relation.kernels.documents",
    "relation.nn", "relation.nn.conversion", "relation.nn.folding", "relation.nn.generation",
    "relation.nn.prepared", "relation.nn.sampling", "relation.hf", "relation.flow.metrics",
    "relation.errors",
)  # fmt: skip
_MARKDOWN = ("tables", "fenced-code-blocks", "header-ids", "cuddled-lists", "code-friendly")
_ADDRESS = re.compile(r'\b(href|src)="([^"]*)"')
_TITLE = re.compile(r"<h1[^>]*>(.*?)</h1>", re.DOTALL)


def write_site(folder: Path, published: Path | None = PUBLISHED) -> list[Path]:
    """Write the site into `folder`, in place of one made before; returns its entry pages.

    published: the folder of shipped records, whose reports are rendered; None for a site without
    reports. Raises InputError where no report is there, a link of a page or of the reference leads
    nowhere, a package of the extra `site` is missing, or `folder` holds something else.
    """
    reports = (
        sorted(path.parent for path in published.glob("*/report/index.html")) if published else []
    )
    if published and not reports:
        raise InputError(f"{published} has no rendered report; `make published` renders them")
    if folder.exists() and not (folder / _MADE).exists():
        raise InputError(f"{folder} is no site that was made here; give another --output")
    partial = folder.with_name(f".{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(partial, reports)
        check_links(partial, skipped=partial / "results")
        (partial / _MADE).touch()
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    names = ("index.html", *(_place_of(report) for report in reports), _REFERENCE)
    return [folder / name for name in names]


def _place_of(report: Path) -> str:
    """Where a shipped campaign's report begins."""
    return f"results/published/{report.parent.name}/report/index.html"


def _write(folder: Path, reports: list[Path]) -> None:
    folder.mkdir(parents=True)
    for report in reports:
        # With the records beside it, to which its pages link.
        target = folder / _place_of(report)
        shutil.copytree(report.parent, target.parents[1])
    sources = [PROJECT / name for name in ("README.md", "CHANGELOG.md")]
    sources += sorted((PROJECT / "docs").glob("*.md"))
    sources += sorted((PROJECT / "kernels").rglob("README.md"))
    sources += [PROJECT / "relation/ops/README.md", PROJECT / "results/README.md"]
    pages = {path.relative_to(PROJECT).as_posix(): path for path in sources}
    sections = [
        ("index.html", "Overview"),
        *((_place_of(report), report.parent.name) for report in reports),
        (_REFERENCE, "Reference"),
    ]
    environment = html_environment()
    write_assets(folder, environment)
    template = environment.get_template("page.html.j2")
    for source, path in pages.items():
        body = _linked(_html(path), source, pages, folder)
        place = _page_of(source)
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        text = template.render(
            page={"campaign": "relation"},
            title=html.unescape(re.sub("<[^>]*>", "", _TITLE.search(body)[1])),
            body=body,
            sections=sections,
            here=place,
            up="../" * place.count("/"),
            records={},
        )
        target.write_text(text, encoding="utf-8")
    _write_reference(folder / "reference")


def _page_of(source: str) -> str:
    """Where a Markdown page lies in the site."""
    return "index.html" if source == "README.md" else f"{source.removesuffix('.md')}.html"


def _html(path: Path) -> str:
    markdown2 = _imported("markdown2")
    body = markdown2.markdown(path.read_text(encoding="utf-8"), extras=[*_MARKDOWN])
    # A phone scrolls a table, not the page.
    body = body.replace("<table>", '<div class="scroll" tabindex="0"><table class="prose">')
    return body.replace("</table>", "</table></div>")


def _imported(package: str):
    from importlib import import_module

    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise InputError(
            f"the site needs {package}: `make site` installs it, or pip install '.[site]'"
        ) from None


def _linked(body: str, source: str, pages: dict[str, Path], folder: Path) -> str:
    """A page whose links lead to the site's pages; files that it links to are copied there."""
    here = PurePosixPath(_page_of(source)).parent

    def linked(found: re.Match) -> str:
        address = urlparse(html.unescape(found[2]))
        if address.scheme or not address.path:
            return found[0]
        target = os.path.normpath(PurePosixPath(source).parent / address.path)
        if target in pages:
            place = _page_of(target)
        elif (PROJECT / target).is_file():
            place = target
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / target, folder / place)
        elif (PROJECT / target).is_dir():
            return f'title="{html.escape(target)}/"'  # no link: a server need not list folders
        else:
            raise InputError(f"{source} links to {found[2]}, which is no page and no file")
        fragment = f"#{address.fragment}" if address.fragment else ""
        return f'{found[1]}="{html.escape(os.path.relpath(place, here) + fragment)}"'

    return _ADDRESS.sub(linked, body)


def _write_reference(folder: Path) -> None:
    """The library's docstrings as pages."""
    pdoc = _imported("pdoc")
    _imported("transformers")  # relation.hf is built on it
    _imported("pdoc.render").configure(search=False, show_source=False)
    pdoc.pdoc(*LIBRARY, output_directory=folder)
