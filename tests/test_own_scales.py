"""Scales that the paper has not: Table B7 holds their pairs, and the paper's cells stay empty."""

from dataclasses import fields, replace

import pandas as pd
from sites import write_report
from test_report_records import make_records

from report.figures import draw_figures
from report.judge.cells import build
from report.render.content import gather
from report.render.overview import overview
from report.values.frames import CampaignRecords
from report.values.own_scales import OWN_SCALES
from report.values.quality import main_results
from report.values.structure import internal_organization

OWN, PAPER = "10M28pc", "10M"


def renamed(records: CampaignRecords) -> CampaignRecords:
    """The same campaign, whose 10M has another name."""
    frames = {each.name: getattr(records, each.name) for each in fields(records)}
    trained = [
        model | {"scale": OWN if model["scale"] == PAPER else model["scale"]}
        for model in records.page["trained"]
    ]
    return replace(
        records,
        page=records.page
        | {
            "trained": trained,
            "scales": [OWN if scale == PAPER else scale for scale in records.page["scales"]],
        },
        **{
            name: frame.assign(scale=frame["scale"].replace(PAPER, OWN))
            for name, frame in frames.items()
            if isinstance(frame, pd.DataFrame) and "scale" in frame
        },
    )


def test_an_own_scale_has_the_values_that_the_papers_tables_would_have() -> None:
    of_paper = make_records()
    found = OWN_SCALES.measure(renamed(of_paper))
    assert {row for row, _, _ in found} == {OWN}
    losses, flow = main_results(of_paper), internal_organization(of_paper)
    wanted = {
        **{column: losses[PAPER, f"{column}_nll", "mean"] for column in ("mha", "full")},
        "delta": losses[PAPER, "delta", "value"],
        "reduction": losses[PAPER, "token_reduction", "mean"],
        **{
            column: flow[PAPER, column, "value"]
            for column in ("l0_self.full", "l0_self.mha", "l0_effrank.full", "l1_self.full")
        },
    }
    for column, value in wanted.items():
        assert value.value is not None
        assert found[OWN, column, "value"].value == value.value, column


def test_an_own_scale_has_its_row_without_an_inventory_of_models() -> None:
    records = renamed(make_records())
    records = replace(records, models=records.models[:0])
    found = OWN_SCALES.measure(records)
    assert found[OWN, "geometry", "value"].value is None
    assert found[OWN, "delta", "value"].value is not None


def test_the_papers_scales_have_no_row_and_its_cells_stay_not_run() -> None:
    (none,) = OWN_SCALES.measure(make_records()).items()
    assert none[0] == ("none", "pairs", "value") and none[1].status == "no counterpart"
    cells = build(renamed(make_records()), "main-results").set_index(["row", "column", "statistic"])
    assert cells.loc[(PAPER, "delta", "value"), "status"] == "not run"


def test_figures_draw_an_own_scale(tmp_path) -> None:
    drawn = {row["name"]: row for row in draw_figures(renamed(make_records()), tmp_path)}
    for name in ("flow-by-layer", "flow-maps"):
        assert OWN in (tmp_path / drawn[name]["file"]).read_text(encoding="utf-8"), name


def test_the_first_page_shows_an_own_scale_where_no_scale_of_the_papers_ran(tmp_path) -> None:
    alone, first = renamed(make_records()), {}
    frames = {each.name: getattr(alone, each.name) for each in fields(alone)}
    of_scale = {n: f for n, f in frames.items() if isinstance(f, pd.DataFrame) and "scale" in f}
    alone = replace(alone, **{n: f[f["scale"] == OWN] for n, f in of_scale.items()})
    for name, records in (("paper", make_records()), ("own", alone)):
        write_report(records, tmp_path / name, [])
        first[name] = overview(gather(tmp_path / name))
    paper, own = first["paper"], first["own"]
    assert (paper["beyond_scales"], paper["beyond_headlines"]) == ([], [])
    assert own["beyond_scales"] == [OWN] and own["headlines"] == []
    (here, *_), (there, *_) = own["beyond_headlines"], paper["headlines"]
    assert here.title == there.title == "Validation NLL, Relation − MHA"
    (shown,) = here.results
    assert shown.campaign.text == there.results[0].campaign.text
    assert shown.link.startswith("tables/beyond-scales.html#")
