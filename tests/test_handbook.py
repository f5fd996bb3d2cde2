"""The published site: one folder whose every link leads somewhere, made anew or not at all."""

import inspect
import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlparse

import pytest
from browser import browser, why_not
from conftest import ROOT, refusal
from test_browser import CONTENTS, check_pages

from report.render import handbook
from report.render.handbook import write_site
from report.render.links import check_links

pytest.importorskip("markdown2", reason="needs the extra `site`")
pytest.importorskip("pdoc", reason="needs the extra `site`")
pytest.importorskip("transformers", reason="needs the extra `site`")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shipped campaigns, of which one has a report of a page."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "invented" / "report").mkdir(parents=True)
    (folder / "invented" / "report" / "index.html").write_text("<h1>A report</h1>")
    (folder / "unrendered").mkdir()
    return folder


@pytest.fixture(scope="module")
def site(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "site"
    entries = write_site(folder, published)
    assert all(path.is_file() for path in entries) and len(entries) == 3
    return folder


def test_the_documentation_is_there_under_its_paths(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / "docs" / f"{page.stem}.html").is_file()
    overview = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="docs/campaigns.html"' in overview and "W_O and W_down" in overview
    training = (site / "docs/campaigns.html").read_text(encoding="utf-8")
    assert 'href="training.html#watching-runs"' in training
    library = (site / "docs/library.html").read_text(encoding="utf-8")
    assert '<a title="kernels/decoding/">' in library  # a folder
    assert (site / "config.yaml").read_bytes() == (ROOT / "config.yaml").read_bytes()
    reference = (site / "reference/relation/ops.html").read_text(encoding="utf-8")
    assert "full_relation" in reference


def test_it_is_made_anew_and_replaces_nothing_else(published, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(handbook, "_write", lambda folder, reports: folder.mkdir())
    folder = tmp_path / "site"
    write_site(folder, published)
    (folder / "old").touch()
    write_site(folder, published)
    assert [path.name for path in folder.iterdir()] == [".relation-site"]
    (folder / ".relation-site").unlink()
    assert "no site that was made here" in refusal(lambda: write_site(folder, published))
    assert "no rendered report" in refusal(lambda: write_site(folder, tmp_path))
    assert [path.name for path in write_site(tmp_path / "alone", None)] == ["index.html"] * 2


def test_a_link_to_nothing_is_refused(published: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(handbook, "_html", lambda path: '<h1>A</h1><a href="gone.md">b</a>')
    message = refusal(lambda: write_site(tmp_path / "site", published))
    assert "README.md links to gone.md" in message and not list(tmp_path.iterdir())


@pytest.mark.parametrize("link", ["deep/a.html#there", "#here", "deep", "gone.html"])
def test_a_link_to_no_page_or_heading_is_refused(tmp_path: Path, link: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.html").write_text('<h1 id="here">A</h1><a href="../b.html#x">b</a>')
    page, good = tmp_path / "b.html", '<a href="deep/a.html#here" id="x">a</a> <a href="#x">b</a>'
    page.write_text(good)
    check_links(tmp_path, skipped=tmp_path / "none")
    page.write_text(f'{good}<a href="{link}">c</a>')
    message = refusal(lambda: check_links(tmp_path, skipped=tmp_path / "none"))
    assert message.startswith(f"b.html links to {link}, which is not there")
    check_links(tmp_path, skipped=page.parent)


def documented_in(name: str, value: object) -> str:
    """The first module of the reference that has something by its own name."""
    modules = (module for module in handbook.LIBRARY if not module.startswith("!"))
    return next(m for m in modules if getattr(import_module(m), name, None) is value)


@pytest.mark.parametrize("package", ["", ".ops", ".kernels", ".nn", ".hf"])
def test_every_public_name_is_explained_in_the_reference(site: Path, package: str) -> None:
    module = import_module(f"relation{package}")
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, ModuleType) or name == "__version__":
            continue
        home = documented_in(name, value) if package == "" else module.__name__
        page = site / "reference" / f"{home.replace('.', '/')}.html"
        assert f'<section id="{name}"' in page.read_text(encoding="utf-8"), f"{home}: {name}"
        assert inspect.getdoc(value), f"{home}.{name} says nothing"


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "a browser is here")
def test_every_page_leads_somewhere_in_a_browser(site: Path, tmp_path: Path) -> None:
    with browser() as tab:
        for page in sorted((site / "reference").rglob("*.html")):
            tab.open(page)
            for link in tab.run(f"return (async () => {{{CONTENTS}}})()")["links"]:
                address = urlparse(link)
                if address.netloc != "pdoc.dev":
                    assert Path(unquote(address.path)).is_file(), f"{page}: {link}"
        pages = tmp_path / "pages"
        shutil.copytree(site, pages)
        # Those of another look are links' ends alone.
        for folder in (pages / "reference", pages / "results/published/invented/report"):
            shutil.rmtree(folder)
            folder.mkdir()
            (folder / "index.html").touch()
        check_pages(tab, pages)
