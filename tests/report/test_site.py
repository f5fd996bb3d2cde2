"""The site of shipped records: pages, links, commands, and what JavaScript opens."""

import re
import shlex
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from relation import plan, records
from report import data, figures, overview, site, stats, study
from report.data import Setting

CAMPAIGN = "anchor"  # miniature, a few hundred rows


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The report of a shipped campaign, without the study."""
    return report_of("books", tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def miniature(tmp_path_factory) -> Path:
    return report_of(CAMPAIGN, tmp_path_factory.mktemp("miniature"))


def report_of(campaign: str, out: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "sections", _nothing)
        patch.setattr(figures, "ALL", figures.ALL[:3])
        site.build(plan.load({"campaign": campaign}), out, published=True)
    return out


@cache
def load(campaign: str, variation: str) -> data.Records:
    return data.load(Setting(campaign, variation))


def _nothing(*_) -> list:
    return []


class Page(HTMLParser):
    """Links, ids and images of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.ids, self.labels = [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list) -> None:
        attributes = dict(attrs)
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag == "img":
            self.labels.append(attributes.get("alt"))


def pages(folder: Path) -> dict[str, Page]:
    return {path.name: Page(path) for path in sorted(folder.glob("*.html"))}


def test_every_link_leads_somewhere_and_nothing_comes_from_outside(built: Path) -> None:
    parsed = pages(built)
    for name, page in parsed.items():
        for link in page.links:
            assert not re.match(r"[a-z]+:(?!,)", link), (name, link)
            file, _, anchor = unquote(link).partition("#")
            if link.startswith("data:"):
                continue
            assert (built / (file or name)).exists(), (name, link)
            if anchor and anchor != "content":
                assert anchor in parsed[file or name].ids, (name, link)
        assert all(page.labels) and len(set(page.ids)) == len(page.ids), name
    text = (built / "style.css").read_text() + (built / "report.js").read_text()
    assert "url(" not in text and "http" not in text and "{{" not in text
    assert set(pd.read_parquet(built / "claims.parquet")["claim"]) == set(range(1, 25))


def choice_of(command: str) -> tuple[list[str], dict[str, str]]:
    """The words of a command before --config, and the choices after it."""
    words = shlex.split(command)
    at = words.index("--config")
    return words[:at], dict(word.split("=", 1) for word in words[at + 1 :])


def test_a_command_makes_again_exactly_the_run_beside_it() -> None:
    books = plan.load({"campaign": "books"})
    groups = {group["name"]: group["rows"] for group in site.run_groups(books, published=True)}
    last = {name: rows[-1] for name, rows in groups.items() if rows[-1]["again"]}
    assert last.keys() >= {CAMPAIGN, "books"}
    assert not any(row["again"] for row in groups["conversion"])  # its campaign no longer exists
    for name, row in last.items():
        words, choice = choice_of(row["again"])
        assert words[:3] == ["snakemake", "--cores", "all"] and choice["published"] == "false"
        # Only its file, so the command runs no check and no benchmark.
        (file,) = words[3:]
        assert plan.load(choice).files()[file.removeprefix(f"results/{name}/")] == row["hash"]


def test_every_benchmark_and_check_has_the_command_that_makes_it() -> None:
    books = plan.load({"campaign": "books"})
    rows = list(site.system_records(load("books", "nearest"), books, published=True))
    assert all(row["again"] for row in rows)
    planned = cache(lambda **choice: set(plan.load(choice).files()))
    for command in {row["again"] for row in rows}:
        words, choice = choice_of(command)
        assert words[3:] and {w.removeprefix("results/books/") for w in words[3:]} <= planned(
            **choice
        )
    former = site.system_records(load("books", "gpt2"), books, published=True)
    assert not any(row["again"] for row in former)


def test_every_shipped_run_has_a_row(built: Path) -> None:
    rows = set(re.findall(r"<code>([0-9a-f]{16})</code>", (built / "records.html").read_text()))
    for path in Path("results/published").glob("*/runs.parquet"):
        assert set(records.read(path, "runs")["hash"]) <= rows, path


def test_a_command_makes_exactly_what_is_missing() -> None:
    books = plan.load({"campaign": "books"})
    stored = [data.load(column) for column in books.columns]
    rows = list(site.missing(stored, published=True))
    assert len(rows) >= 4
    made = []
    for row in rows:
        words, choice = choice_of(row["command"])
        files = [word.removeprefix("results/books/") for word in words[3:]]
        assert set(files) <= plan.load(choice | {"published": "false"}).files().keys()
        made += files
    lacking = pd.concat([each.planned for each in stored]).query("status != 'ok' and seed >= 0")
    assert sorted(made) == sorted(lacking["file"])  # each once


def test_one_off_changes_corpora_and_restrictions_are_in_the_command() -> None:
    varied = Setting("tiny", "learning_rate=2e-2+layers=4", corpus="my text.txt", varies="base")
    words, choice = choice_of(site.command(varied, False, seeds=[42, 43]))
    assert words[3:] == ["-R", "train"] and choice.pop("vary") == "learning_rate=2e-2 layers=4"
    assert choice.pop("variations") == "base"
    other = Setting("tiny", "gpt2+layers=4", varies="gpt2")
    assert choice_of(site.command(other, False))[1]["vary"] == "layers=4"
    assert choice == {"campaign": "tiny", "corpus": "my text.txt", "seeds": "42,43"}
    file = "runs/10M-mini/learning_rate=2e-2/mha/42/run.parquet"
    words, _ = choice_of(site.command(varied, False, targets=[file], scales=["10M-mini"]))
    assert words[3:] == ["--force", f"results/tiny/{file}"]


def test_the_first_page_says_where_relation_is_surely_better() -> None:
    estimates = {"10M": (-0.0363, -0.0477, -0.0249, 28), "30M": (0.0065, -0.0461, 0.0591, 3)}
    estimates |= {"100M": (-0.01,)}
    rows = [
        {"label": scale, "title": "One", "final_nll": stats.Estimate(*each)}
        for scale, each in estimates.items()
    ]
    text = overview.answer(rows)
    assert "Of 3 comparisons" in text and "lower in 1 (10M, One)" in text
    assert "in 2 no difference is established" in text


def test_a_difference_is_bold_where_its_interval_excludes_zero(built: Path) -> None:
    page = (built / "index.html").read_text(encoding="utf-8").replace("−", "-")
    shown = re.findall(
        r"<(b|span)>([+-][\d.]+)(?: <span[^>]*>\((.+?) to (.+?)\)</span>)?</\1>", page
    )
    established = [low != "" and float(low) * float(high) > 0 for _, _, low, high in shown]
    assert [tag == "b" for tag, *_ in shown] == established
    assert {True, False} == set(established)


def test_a_miniature_is_set_against_nothing_of_the_paper(miniature: Path) -> None:
    page = (miniature / "tables.html").read_text(encoding="utf-8")
    assert (
        ">Paper<" in page and ">difference<" not in page and re.search(r"[1-9][\d.]*K</td>", page)
    )
    (row,) = overview.differences(load(CAMPAIGN, "scaled-sd-0.02").runs)
    assert 0 < row["mha"] < row["frequencies"]


def test_claims_are_listed_where_some_are_tested(built: Path, miniature: Path) -> None:
    for folder, count in ((built, 24), (miniature, 0)):
        links = Page(folder / "index.html").links
        assert sum(link.startswith("claims.html#claim-") for link in links) == count
        assert (folder / "claims.html").exists() == bool(count)


def test_costs_are_those_of_the_tables_in_the_order_of_the_scales(built: Path) -> None:
    cost = overview.cost(pd.read_parquet(built / "cells.parquet"))
    more, memory = cost["more parameters"], cost["times the memory of FlashAttention"]
    assert list(more.items()) == [("10M", "30"), ("30M", "50"), ("100M", "100")]
    assert list(memory.items()) == [("10M", "1.004"), ("30M", "1.004"), ("100M", "1.005")]


def test_what_a_choice_leaves_out_is_not_missing() -> None:
    chosen = plan.load({"campaign": CAMPAIGN, "variants": "mha"})
    planned = data.load(Setting(CAMPAIGN, "scaled-sd-0.02"), campaign=chosen).planned
    assert set(planned.query("kind == 'runs'")["variant"]) == {"mha"}


def test_a_setting_of_other_scales_has_nothing_that_belongs_to_none() -> None:
    whole, part = (
        data.load(Setting("books", "nearest", scales)) for scales in (None, ("100M28pc",))
    )
    assert len(whole.recall) and len(whole.checks) and len(part.runs)
    assert part.recall.empty and part.checks.empty
    assert not {"recall", "checks", "gradients"} & set(part.planned["kind"])


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def browsed(address: str) -> str:
    """The document at an address after its scripts have run."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command = [CHROMIUM, *flags, "--virtual-time-budget=2000", "--dump-dom", address]
    return subprocess.check_output(command, stderr=subprocess.PIPE, text=True, timeout=60)


@in_a_browser
def test_a_link_to_a_claim_opens_it(built: Path) -> None:
    html = browsed(f"file://{built}/claims.html#claim-16")
    assert re.findall(r'<details class="claim" id="claim-(\d+)" open', html) == ["16"]


def test_the_first_page_compares_pairs_that_chose_nothing_and_any_scale(built: Path) -> None:
    runs = load("books", "nearest").runs
    mine = runs[runs["scale"] == "30M"].assign(scale="1B", own_scale="1B")
    settings = [Setting("books", "nearest"), Setting("mine")]
    cells = pd.read_parquet(built / "cells.parquet")
    rows = overview.difference_rows(settings, [runs, mine], cells, miniature=False)
    shown = [(row["label"], row["final_nll"].n, round(row["final_nll"].value, 4)) for row in rows]
    assert shown[:2] == [("10M", 28, -0.0363), ("30M", 3, 0.0065)]
    assert shown[-1] == ("1B", 3, 0.0065) and rows[-1]["paper"] is None


def test_seeds_that_a_variation_plans_are_not_further():
    runs = load(CAMPAIGN, "scaled-sd-0.02").runs
    assert {143, 144} <= set(runs["seed"]) and not runs["further"].any()
    nearest = load("books", "nearest").runs.query("scale == '10M'")
    assert set(nearest.loc[~nearest["further"], "seed"]) == {42, 43, 44}
    assert nearest["further"].any()


def test_the_loss_of_one_run_with_one_key_changed_stands_beside_the_campaigns() -> None:
    runs = load(CAMPAIGN, "scaled-sd-0.02").runs
    full = runs.query("variant == 'full' and own_scale == '10M-mini'")
    mine = full.query("seed == 143").assign(final_nll=4.5)
    rows = {row["variant"]: row["cells"] for row in overview.losses([runs, mine])}
    (theirs, _), (nll, less) = rows["Full Relation"]
    assert (theirs.n, nll.n, nll.value) == (len(full), 1, 4.5)
    assert less.value == pytest.approx(4.5 - full.query("seed == 143")["final_nll"].item())
    assert rows["MHA"][1][0].n == 0  # not run


def test_options_of_a_scale_are_compared_with_those_of_a_part_of_its_tokens() -> None:
    books = plan.load({"campaign": "books"})
    rows = {row["name"]: row for row in site.assumptions(books)}
    assert rows["budget_tokens"]["differs"] and not rows["tokens_per_update"]["differs"]


def test_the_first_page_says_where_a_loss_was_never_reached(built: Path) -> None:
    assert "not reached" in (built / "index.html").read_text(encoding="utf-8")
