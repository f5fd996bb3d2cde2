"""Whether every link of a folder of pages leads somewhere, to the very heading that it names."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

from relation.errors import InputError


class _Page(HTMLParser):
    """The links of a page, and what links may name in it."""

    def __init__(self, path: Path):
        super().__init__()
        self.names, self.links = {"", "top"}, []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag, name) == ("a", "name"):
                self.names.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def check_links(folder: Path, skipped: Path) -> None:
    """Raise InputError for the first link in a folder's pages to no file, or to no place in a page.

    skipped: a folder in it whose pages are checked elsewhere; they may be linked to. Links to other
    hosts are not followed.
    """
    folder, skipped = folder.resolve(), skipped.resolve()
    pages = (path for path in sorted(folder.rglob("*.html")) if skipped not in path.parents)
    read: dict[Path, _Page] = {}

    def page(path: Path) -> _Page:
        if path not in read:
            read[path] = _Page(path)
        return read[path]

    for path in pages:
        for link in page(path).links:
            address = urlparse(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            dead = not target.is_file()
            if not dead and target.suffix == ".html":
                dead = unquote(address.fragment) not in page(target).names
            if dead:
                raise InputError(
                    f"{path.relative_to(folder)} links to {link}, which is not there; correct the "
                    "page that it was made of"
                )
