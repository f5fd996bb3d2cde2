"""What formed while models trained: means over runs probed alike, and a word on the others."""

from dataclasses import replace

import numpy as np
import pytest
from test_records import ORIGIN, probed, results  # noqa: F401
from test_report_records import make_records

from relation import schemas
from relation.code import code_hash, golden_hash
from relation.parquet import read_parquet, write_parquet
from relation.records import CampaignRecords, load_records
from relation.records.provenance import CURRENT, OLDER, STALE
from relation.results import Results
from relation.uses import uses_of
from report.figures import draw_figures, formation
from report.figures.drawing import NotDrawnError

DRAWINGS = {drawing.name: drawing for drawing in formation.DRAWINGS}


def probed_otherwise(*seeds: int) -> CampaignRecords:
    """Records whose runs of 10M with these seeds were probed by another configuration."""
    records = make_records()
    probes = records.probes
    other = (probes["scale"] == "10M") & probes["seed"].isin(seeds)
    values = probes["value"].mask(other, 100.0)
    return replace(records, probes=probes.assign(alike=~other, value=values))


def test_runs_that_were_probed_otherwise_are_left_out_and_named() -> None:
    records = probed_otherwise(43)
    for name, runs in (
        ("organisation-over-training", "10M/mha/43, 10M/full/43"),
        ("learned-parameters", "10M/full/43"),
    ):
        title = DRAWINGS[name].title(records)
        assert title.endswith(f"Left out, since another configuration probed them: {runs}.")
        assert "Left out" not in DRAWINGS[name].title(make_records())
        figure, whole = (DRAWINGS[name].draw(r) for r in (records, make_records()))
        drawn, expected = (
            [line.get_ydata() for axes in f.axes for line in axes.lines] for f in (figure, whole)
        )
        assert len(drawn) == len(expected)
        # All seeds have the same invented values: a mean without one of them is the same.
        assert all(np.allclose(a, b) for a, b in zip(drawn, expected, strict=True))


def test_layers_are_named_by_their_numbers() -> None:
    """Also where the validation NLL, which has no layer, stands among the probes."""
    figure = DRAWINGS["learned-parameters"].draw(make_records())
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names[0] == "L0" and all(name[1:].isdecimal() for name in names)


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_the_first_two_layers_are_told_apart_without_their_colours(drawing: str) -> None:
    legend = DRAWINGS[drawing].draw(make_records()).axes[0].get_legend()
    first, second, last = ((line.get_linewidth(), line.is_dashed()) for line in legend.get_lines())
    assert first[0] > second[0] > last[0]
    assert [first[1], second[1], last[1]] == [False, True, False]


def test_nothing_is_drawn_of_runs_that_were_all_probed_otherwise() -> None:
    records = make_records()
    records = replace(records, probes=records.probes.assign(alike=False))
    for drawing in DRAWINGS.values():
        with pytest.raises(NotDrawnError, match="another configuration of `diagnostics`"):
            drawing.draw(records)


def test_captions_say_how_often_and_on_what_the_runs_were_probed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("report.figures.DRAWINGS", formation.DRAWINGS)
    records = make_records()
    page = records.page | {"probes": 7, "probe_sequences": 3}
    first, second = draw_figures(replace(records, page=page), tmp_path)
    assert "after each of 7 equal parts of the budget" in first["title"] and first["file"]
    assert "means over seeds on 3 sequences" in first["title"]
    assert "after each of 7 equal parts of the budget" in second["title"]
    assert "on one sequence" in formation.DRAWINGS[0].title(records)


@pytest.mark.parametrize("sampling, changes, alike, state", [
    ({}, {}, True, CURRENT),
    ({"sequences": 2}, {}, False, STALE),
    ({"rank_length": 8}, {}, False, STALE),
    ({}, {"probe_times": 5}, False, STALE),
    ({}, {"validation_looks": 5}, False, STALE),
    ({}, {"validation_look_tokens": 5}, False, STALE),
    ({}, {"probe_code_hash": "f" * 16}, True, OLDER),
])  # fmt: skip
def test_probes_are_known_by_how_they_were_taken(
    results: Results,  # noqa: F811
    sampling: dict,
    changes: dict,
    alike: bool,
    state: str,
) -> None:
    run = results.campaign.run("10M", "full", 42)
    path = results.run(run) / "probes.parquet"
    row = {
        "scale": "10M", "variant": "full", "seed": 42, "update": 0, "tokens": 0, "layer": 0,
        "part": None, "metric": "lambda", "value": 0.5,
    }  # fmt: skip
    now = {"code_hash": code_hash("training", uses_of(run)), "golden_hash": golden_hash()}
    origin = ORIGIN | now | {"config_hash": run.config_hash}
    for name, layout in (("record", schemas.RUN), ("log", schemas.LOG)):
        file = results.run(run) / f"{name}.parquet"
        write_parquet(file, layout, read_parquet(file).to_pydict(), origin)
    write_parquet(path, schemas.PROBES, [row], origin | probed(run, **sampling) | changes)
    records = load_records(results.campaign, results)
    assert records.probes["alike"].tolist() == [alike]
    provenance = records.provenance.set_index("source").loc[path.as_posix()]
    assert provenance["freshness"] == state
