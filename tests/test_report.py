"""The report's figures, and its numbers as text."""

from dataclasses import replace
from xml.etree import ElementTree

import pandas as pd
from test_report_records import make_empty, make_records

from report import figures
from report.figures import DRAWINGS, draw_figures
from report.figures.runs import draw_runs
from report.values.layout import Number
from report.values.numbers import (
    difference_text,
    printed_text,
    quantity,
    tolerance_text,
    value_text,
)


def test_numbers_keep_the_papers_digits():
    assert printed_text("841833.930", Number(grouped=True)) == "841,833.930"
    assert printed_text("-0.0412", Number()) == "−0.0412"
    assert value_text(0.0213, Number(2, significant=3), "5.24") == "0.0213"
    assert value_text(0.0302, Number(4), "+0.0320") == "+0.0302"
    assert value_text(-0.00001, Number(4), "-0.0412") == "0.0000"
    assert difference_text(-1.5, 5.0, Number(2, "%"), "%", "6.50") == "−1.50 pp"
    own = Number(grouped=True, significant=4, own=True)
    assert value_text(3_356_849.446, own, "841833.930") == "3,356,849"
    assert value_text(0.75, own, "841833.930") == "0.7500"
    assert difference_text(0.2359, 1.1329, Number(3, "×", own=True), "x", "0.897000") == "+0.236×"
    assert quantity(98_304) == "98.3K"
    assert tolerance_text(0.00124, Number(4), "nat/token", "-0.0412") == "±0.0012"
    assert tolerance_text(0.000031, Number(4), "nat/token", "-0.0412") == "±0.000031"
    assert tolerance_text(0.0, Number(), "tokens", "1024") == "exact"
    assert tolerance_text(2.5, Number(1, "%"), "%", "7.3") == "±2.5 pp"


def only(records, sources):
    """The records of these files alone, and what rests on nothing else."""
    frames = {
        name: frame[frame["source"].isin(sources)]
        for name, frame in vars(records).items()
        if isinstance(frame, pd.DataFrame) and "source" in frame
    }
    logged = frames["logs"].merge(frames["runs"], on=["scale", "variant", "seed"])
    pairs = logged.groupby(["scale", "seed"])["variant"].nunique().eq(2)
    whole = pairs.reindex(pd.MultiIndex.from_frame(records.efficiency[["scale", "seed"]]))
    efficiency = records.efficiency[whole.eq(True).to_numpy()]
    return replace(records, efficiency=efficiency, **frames)


def test_figures_repeat_to_the_byte_from_the_records_they_name(
    invented_report, tmp_path, monkeypatch
):
    records, entries = make_records(), []
    for drawing in DRAWINGS:
        monkeypatch.setattr(figures, "DRAWINGS", (drawing,))
        named = only(records, drawing.sources(records))
        entries += draw_figures(named, tmp_path)
    runs = draw_runs(records, tmp_path)
    assert len(runs) == len(records.runs)
    assert all(entry["file"] and entry["alt"] and not entry["reason"] for entry in entries)
    names = [entry["file"] for entry in entries]
    names += [name.replace(".svg", ".pdf") for name in names]
    for name in (*names, *(path.relative_to(tmp_path) for path in runs)):
        drawn = (tmp_path / name).read_bytes()
        assert drawn == (invented_report / name).read_bytes(), name
        if not str(name).endswith(".pdf"):
            ElementTree.fromstring(drawn)


def test_figures_without_data_are_named(tmp_path):
    entries = draw_figures(make_empty(), tmp_path)
    drawn = {entry["name"] for entry in entries if entry["file"]}
    assert drawn == {"overview", "self-exchange"}, "the diagrams need no data"
    assert all(entry["reason"] for entry in entries if not entry["file"])
