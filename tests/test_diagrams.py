"""Figures 1 and 2: what they show is what the operators compute."""

from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from test_report_records import make_empty

from relation.operators import full_flow, givens_mix
from report.figures import draw_figures
from report.figures.example import LAM, TAU, worked_example
from report.figures.self_exchange import HEADS, TOKENS, pairing

DRAWN = [(6, 5), (TOKENS, 30), (TOKENS, 11)]


@pytest.mark.parametrize("tokens, seed", DRAWN)
def test_the_flow_shown_is_the_operators(tokens, seed):
    """P_1 = U sqrt(d_h) and P_2 = 1 give the evidence U back."""
    example = worked_example(tokens, seed)
    evidence = torch.from_numpy(example.evidence)[None, None]
    p2 = torch.eye(tokens, dtype=torch.float64)[None, None]
    lam = torch.tensor(LAM, dtype=torch.float64)
    flow = full_flow(evidence * tokens**0.5, p2, lam, TAU)[0, 0].numpy()
    np.testing.assert_allclose(example.flow, flow, atol=1e-14)
    causal = torch.where(torch.ones_like(evidence).tril().bool(), evidence, -torch.inf)
    np.testing.assert_allclose(example.attention, causal.softmax(-1)[0, 0].numpy(), atol=1e-14)


def test_the_printed_rows_of_the_flow_sum_to_one():
    rows = worked_example(TOKENS, seed=30).flow.round(2).sum(axis=1)
    np.testing.assert_allclose(rows, 1)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_pairs_shown_are_those_that_mix(layer):
    """A quarter turn sends each pair's second slice, negated, to the place of its first."""
    info = torch.arange(1.0, HEADS + 1).view(1, HEADS, 1, 1)
    theta = torch.full((HEADS // 2,), torch.pi / 2)
    mixed = givens_mix(info, theta, layer).flatten()
    for a, b in pairing(layer):
        assert mixed[a - 1] == pytest.approx(-b) and mixed[b - 1] == pytest.approx(a)


def test_they_are_drawn_without_data_for_page_and_print(tmp_path):
    entries = {entry["name"]: entry for entry in draw_figures(make_empty(), tmp_path)}
    assert list(entries)[:2] == ["overview", "self-exchange"]
    for name in ("overview", "self-exchange"):
        assert entries[name]["file"] == f"figures/{name}.svg"
        drawn = (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        ElementTree.fromstring(drawn)
        # Outlines, so that a formula does not hang on the reader's fonts.
        assert "<text" not in drawn and "#d55e00" in drawn
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
