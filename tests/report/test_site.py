"""The site of shipped records: pages, links, commands, and what a link opens."""

import html
import math
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
from conftest import refusal

from relation import plan, records
from report import data, figures, overview, site, study
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
    (out / "figures").mkdir()
    (out / "figures/.DS_Store").touch()  # macOS leaves one in folders that it shows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "sections", lambda *_: [])
        patch.setattr(figures, "ALL", figures.ALL[:3])
        site.build(plan.load({"campaign": campaign}), out, published=True)
    return out


@cache
def load(campaign: str, variation: str, scales: tuple | None = None) -> data.Records:
    return data.load(Setting(campaign, variation, scales))


def attributes(page: Path, *names: str, tag: str = r"\w+") -> list[str]:
    """The values of these attributes in a page, or in its elements of one tag."""
    elements = re.findall(rf"<{tag}\b[^>]*>", page.read_text(encoding="utf-8"))
    values = re.findall(rf'\s(?:{"|".join(names)})="([^"]+)"', "\n".join(elements))
    return [html.unescape(value) for value in values]


def test_every_link_leads_somewhere_and_nothing_comes_from_outside(built: Path) -> None:
    pages = sorted(built.glob("*.html"))
    ids = {page.name: attributes(page, "id") for page in pages}
    for page in pages:
        for link in attributes(page, "href", "src"):
            assert not re.match(r"[a-z]+:(?!,)", link), (page, link)
            file, _, anchor = unquote(link).partition("#")
            if link.startswith("data:"):
                continue
            assert (built / (file or page.name)).exists(), (page, link)
            if anchor and anchor != "content":
                assert anchor in ids[file or page.name], (page, link)
        images = attributes(page, "src", tag="img")
        assert len(attributes(page, "alt", tag="img")) == len(images), page
        assert len(set(ids[page.name])) == len(ids[page.name]), page
    text = (built / "style.css").read_text()
    assert "url(" not in text and "http" not in text and "{{" not in text
    assert set(pd.read_parquet(built / "claims.parquet")["claim"]) == set(range(1, 25))


def choice_of(command: str) -> tuple[list[str], dict[str, str]]:
    """The words of a command before --config, and the choices after it."""
    words = shlex.split(command)
    at = words.index("--config")
    return words[:at], {k: v for k, _, v in (word.partition("=") for word in words[at + 1 :])}


def test_a_command_makes_exactly_a_shipped_run() -> None:
    books = plan.load({"campaign": "books"})
    shipped = site.run_groups(books, {}, unshipped=(), published=True)
    groups = {group["name"]: group for group in shipped}
    assert groups.keys() >= {CAMPAIGN, "books"}
    assert not groups["conversion"]["again"]  # its campaign no longer exists
    for name in set(groups) - {"conversion"}:
        words, choice = choice_of(groups[name]["again"])
        assert words == ["snakemake", "--cores", "all"] and choice.pop("--") == ""
        ((file, _),) = ((word, choice.pop(word)) for word in list(choice) if "/" in word)
        assert choice == {"campaign": name, "published": "false"}
        files, prefix = plan.load(choice).files(), f"results/{name}/"
        for run in groups[name]["rows"]:  # with any other run's name, too
            other = file.replace(groups[name]["rows"][0]["name"], run["name"])
            assert files[other.removeprefix(prefix)] == run["hash"]


def test_every_shipped_run_has_a_row(built: Path) -> None:
    rows = set(re.findall(r"<code>([0-9a-f]{16})</code>", (built / "records.html").read_text()))
    for path in Path("results/published").glob("*/runs.parquet"):
        assert set(records.read(path, "runs")["hash"]) <= rows, path


def test_a_campaign_without_runs_lists_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    records.write(tmp_path / "tiny" / "runs.parquet", "runs", [])
    linear = plan.load({"campaign": "tiny", "variants": "linear"})
    assert not list(site.run_groups(linear, {}, unshipped=(), published=False))
    settings = plan.load({"campaign": "tiny"}).resolved  # no scale trains a model
    settings["settings"]["scales"]["10M-mini"]["variants"] = []
    site.build(plan.load(settings), tmp_path / "benchmarks", published=False)
    assert (tmp_path / "benchmarks/index.html").exists()


def test_a_command_has_the_choices_of_the_user() -> None:
    choices = {"campaign": "tiny", "seeds": [42, 43], "vary": "learning_rate=2e-2 layers=4"}
    words, choice = choice_of(site.command(choices, again=True))
    assert words[3:] == ["-R", "train"] and choice == choices | {"seeds": "42,43"}
    words, choice = choice_of(site.command(choices, True, "10M-mini/base/mha/42"))
    assert words[3:] == ["-R", "results/tiny/runs/10M-mini/base/mha/42/run.parquet"]
    assert list(choice)[-2:] == ["--", "all"]


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
        assert (folder / "claims.html").exists() == bool(count)
        assert (
            not count or len(attributes(folder / "claims.html", "id")) == count + 1
        )  # and its content


def test_costs_are_those_of_the_tables_in_the_order_of_the_scales(built: Path) -> None:
    cost = overview.cost(pd.read_parquet(built / "cells.parquet"))
    more, memory = cost["more parameters"], cost["times the memory of FlashAttention"]
    assert cost["times the tokens/s of FlashAttention"]["10M"] == "1.19 (1.16 to 1.20)"
    assert list(more.items()) == [("10M", "30"), ("30M", "50"), ("100M", "100")]
    assert list(memory.items()) == [("10M", "1.005"), ("30M", "1.006"), ("100M", "1.004")]


def test_what_a_choice_leaves_out_is_not_missing() -> None:
    chosen = plan.load({"campaign": CAMPAIGN, "variants": "mha"})
    planned = data.load(Setting(CAMPAIGN, "scaled-sd-0.02"), campaign=chosen).planned
    assert set(planned.query("kind == 'runs'")["variant"]) == {"mha"}


def test_a_variation_of_one_variant_shares_the_other_with_the_variation_that_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = plan.load({"campaign": CAMPAIGN}).resolved
    mine = {"scales": ["10M-mini"], "variants": ["mha", "full"]}
    mine["overrides"] = {"mha": {"learning_rate": 1.0}}
    settings["settings"]["variations"]["mine"] = mine
    chosen = plan.load({**settings, "variations": "mine", "seeds": 142})
    assert [run.variation for run in chosen.runs] == ["mine", "unscaled-sd-0.02"]
    stored = data.load(Setting(CAMPAIGN, "mine"), campaign=chosen)
    assert set(stored.runs["variant"]) == set(stored.flow["variant"]) == {"full"}
    status = stored.planned.query("kind == 'runs'").set_index("variant")["status"]
    assert status.to_dict() == {"mha": "not run", "full": "ok"}
    # A pair made by two variations is checked too.
    frames = records.load(records.PUBLISHED / CAMPAIGN)
    mha = frames["runs"].query("variation == 'unscaled-sd-0.02' and variant == 'mha'")
    mha = mha.assign(variation="mine", order_hash="other windows")
    frames = {**frames, "runs": pd.concat([frames["runs"], mha])}
    monkeypatch.setattr(data, "_stored", lambda folder: frames)
    message = refusal(lambda: data.load(Setting(CAMPAIGN, "mine"), campaign=chosen))
    assert "mha and full of anchor/10M-mini/mine seed 142 had different data" in message


def test_a_setting_of_other_scales_has_nothing_that_belongs_to_none() -> None:
    whole, part = (
        data.load(Setting("books", "nearest", scales)) for scales in (None, ("100M28pc",))
    )
    assert len(whole.recall) and len(whole.checks) and len(part.runs)
    assert part.recall.empty and part.checks.empty
    assert not {"recall", "checks", "gradients"} & set(part.planned["kind"])


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_link_to_a_claim_opens_it(built: Path) -> None:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    flags += ["--virtual-time-budget=2000", "--dump-dom"]
    command = [CHROMIUM, *flags, f"file://{built}/claims.html#claim-16"]
    page = subprocess.check_output(command, stderr=subprocess.PIPE, text=True, timeout=60)
    opened = page.partition('<details class="claim" open')[2].partition("</details>")[0]
    assert re.findall(r'id="claim-(\d+)"', opened) == ["16"]


def test_the_first_page_compares_pairs_that_chose_nothing_and_any_scale(built: Path) -> None:
    runs = load("books", "nearest").runs
    mine = runs[runs["scale"] == "30M"].assign(scale="1B", own_scale="1B")
    settings = [Setting("books", "nearest"), Setting("mine")]
    cells = pd.read_parquet(built / "cells.parquet")
    rows = overview.difference_rows(settings, [runs, mine], cells)
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
    (theirs, _, _), (nll, less, diverged) = rows["Full Relation"]
    assert (theirs.n, nll.n, nll.value) == (len(full), 1, 4.5)
    assert less.value == pytest.approx(4.5 - full.query("seed == 143")["final_nll"].item())
    assert rows["MHA"][1][0].n == 0 == diverged  # not run
    rows = overview.losses([mine.assign(final_nll=math.nan)])
    assert (rows[0]["cells"][0][0].n, rows[0]["cells"][0][2]) == (0, 1)


def test_the_cost_at_a_scale_is_of_one_setting(built: Path) -> None:
    cells = pd.read_parquet(built / "cells.parquet").query("setting == 'books/nearest'")
    partial = cells[cells["column"] != "allocated.mha"].assign(setting="partial")
    doubled = cells.assign(value=2 * cells["value"])
    assert overview.cost(pd.concat([partial, doubled])) == overview.cost(doubled)


def test_two_scales_that_stand_for_one_of_the_paper_keep_their_names() -> None:
    runs = load("books", "nearest", ("100M", "100M28pc")).runs
    assert set(runs["scale"]) == {"100M", "100M28pc"}


def test_options_of_a_scale_are_compared_with_those_of_a_part_of_its_tokens() -> None:
    books = plan.load({"campaign": "books"})
    rows = {row["name"]: row for row in site.assumptions(books)}
    assert rows["divergence"]["values"][0]["10M"] == "fail"  # the default
    assert rows["budget_tokens"]["differs"] and not rows["tokens_per_update"]["differs"]


def test_the_first_page_says_where_a_loss_was_never_reached(built: Path) -> None:
    assert "not reached" in (built / "index.html").read_text(encoding="utf-8")
