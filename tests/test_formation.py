"""What formed while models trained: means over runs probed alike, and a word on the others."""

from dataclasses import replace

import numpy as np
import pytest
from test_records import ORIGIN, probed, results  # noqa: F401
from test_report_records import edited, make_records

from relation.pipeline.hashes import code_hash, golden_hash
from relation.pipeline.provenance import CURRENT, OLDER, STALE
from relation.pipeline.results import Results
from relation.pipeline.uses import uses_of
from relation.store import layouts as schemas
from relation.store.parquet import read_parquet, write_parquet
from report.figures import formation
from report.figures.drawing import NotDrawnError
from report.values.frames import load_records

DRAWINGS = (formation.organisation, formation.learned_parameters)


@pytest.mark.parametrize("drawing, runs", [
    (formation.organisation, "10M/mha/43, 10M/full/43"),
    (formation.learned_parameters, "10M/full/43"),
])  # fmt: skip
def test_runs_that_were_probed_otherwise_are_left_out_and_named(drawing, runs) -> None:
    whole = make_records()
    other = {"scale": "10M", "seed": 43}
    records = edited(whole, "probes", other, alike=False, value=100.0)
    said = f"Left out, since another configuration probed them: {runs}."
    assert drawing.title(records).endswith(said) and "Left out" not in drawing.title(whole)
    drawn, expected = (
        [line.get_ydata() for axes in drawing.draw(of).axes for line in axes.lines]
        for of in (records, whole)
    )
    # All seeds have the same invented values: a mean without one of them is the same.
    assert all(np.allclose(a, b) for a, b in zip(drawn, expected, strict=True))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_the_first_two_layers_are_told_apart_without_their_colours(drawing) -> None:
    legend = drawing.draw(make_records()).axes[0].get_legend()
    first, second, last = ((line.get_linewidth(), line.is_dashed()) for line in legend.get_lines())
    assert first[0] > second[0] > last[0]
    assert [first[1], second[1], last[1]] == [False, True, False]
    assert [name.get_text() for name in legend.get_texts()] == ["L0", "L1", "L2"]


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_nothing_is_drawn_of_runs_that_were_all_probed_otherwise(drawing) -> None:
    records = make_records()
    with pytest.raises(NotDrawnError, match="another configuration of `diagnostics`"):
        drawing.draw(replace(records, probes=records.probes.assign(alike=False)))


def test_captions_say_how_often_and_on_what_the_runs_were_probed() -> None:
    records = make_records()
    more = replace(records, page=records.page | {"probes": 7, "probe_sequences": 3})
    for drawing in DRAWINGS:
        assert "after each of 7 equal parts of the budget" in drawing.title(more)
    assert "means over seeds on 3 sequences" in formation.organisation.title(more)
    assert "on one sequence" in formation.organisation.title(records)


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
