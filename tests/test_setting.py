"""Whether a campaign's models, budgets and corpora are the paper's: read off what it plans."""

from dataclasses import replace

import pytest
from paper_records import paper_records, trained_as
from test_claims import ledger, paper
from test_config import changed

from relation.pipeline.campaign import resolve
from report.judge.cells import build
from report.judge.setting import other_device
from report.values.likeness import Likeness
from report.values.page import trained_models

SCALES = ("10M", "30M", "100M")
P = "campaigns.paper"


def planned(*changes: tuple) -> list[dict]:
    """What the paper's campaign trains after changes (place, value) of its configuration."""
    return trained_models(resolve(changed(*changes), campaign="paper"))


def likeness_of(trained: list[dict]) -> Likeness:
    return Likeness(paper_records(trained=trained).page)


SMALL = ((f"{P}.scales.100M.layers", 4),)
CHEAP = tuple((f"{P}.scales.{scale}.budget_tokens", 100_000_000) for scale in SCALES)
LOCAL = ((f"{P}.corpora.tinystories.source", {"kind": "files", "validation_modulus": 50}),)


@pytest.mark.parametrize("name, models, corpora", [
    ("paper", set(), set()), ("books", set(), set(SCALES)),
    ("smoke", set(SCALES), set(SCALES)), ("tiny", set(SCALES), set(SCALES)),
])  # fmt: skip
def test_each_campaign_is_what_its_configuration_makes_it(name: str, models, corpora) -> None:
    likeness = likeness_of(trained_as(name))
    assert {s for s in SCALES if likeness.other_models([s], budget=True)} == models
    assert {s for s in SCALES if likeness.other_corpora([s])} == corpora
    assert bool(likeness.differences) == (name != "paper")


@pytest.mark.parametrize("changes, said", [
    (SMALL, "100M has 4/640/8x80/1280, the paper's 20/640/8x80/1280"),
    ([(f"{P}.scales.10M.d_ff", 769)], "10M has 6/384/8x48/769"),
    ([(f"{P}.scales.10M.vocabulary", 8192)], "10M has a vocabulary of 8K, the paper's 4K"),
    ([(f"{P}.scales.10M.context", 512), (f"{P}.scales.10M.micro", 64)],
     "10M has T = 512, the paper's 1024"),
    ([(f"{P}.scales.30M.overrides.full", {"heads": 16})],
     "30M/full has 10/512/16x32/1024, the paper's 10/512/8x64/1024"),
    ([(f"{P}.scales.30M.overrides.hybrid.layers", 8)],
     "30M/hybrid has 8/480/8x60/960, the paper's 12/480/8x60/960"),
])  # fmt: skip
def test_whatever_changes_the_models_makes_a_scale_another(changes, said: str) -> None:
    likeness = likeness_of(planned(*changes))
    assert said in likeness.other_models(SCALES, budget=False)
    assert len([s for s in SCALES if likeness.other_models([s], budget=False)]) == 1


def test_a_variant_that_the_paper_has_not_may_have_any_shape() -> None:
    rows = [*planned(), planned()[0] | {"variant": "of-mine", "layers": 3}]
    assert not likeness_of(rows).differences
    alone = [row for row in rows if row["variant"] == "of-mine"]
    assert "none of the paper's models" in likeness_of(alone).differences
    other = [row | {"scale": "1B"} for row in planned()]
    assert "no scale 1B" in likeness_of(other).differences


def test_a_scale_of_other_models_is_not_judged_and_the_others_are() -> None:
    """Nobody marked it: the configuration says so itself."""
    records = replace(paper(), page=paper().page | {"trained": planned(*SMALL)})
    cells = build(records).set_index(["table", "row", "column", "statistic"])
    for scale, verdict in (("10M", "within"), ("30M", "within"), ("100M", "not judged")):
        for key in (
            ("main-results", scale, "delta", "value"),
            ("app-nll", f"{scale}/42", "mha", "value"),
            ("app-configs", scale, "params.full", "value"),
            ("efficient-relation", scale, "matched.ratio", "value"),
        ):
            counted = key[0] == "app-configs" and verdict == "within"
            assert cells.loc[key, "verdict"] == ("same" if counted else verdict), key
    assert "4/640/8x80/1280" in cells.loc[key, "verdict_reason"]
    found = ledger(records)
    for number in (1, 3, 5, 6, 12, 14):
        assert found[number].verdict == "reproduced"
        assert "without 100M: 100M has 4/640/8x80/1280, the paper's" in found[number].reason
    assert {found[number].verdict for number in (4, 17)} == {"reproduced"}


def test_another_budget_says_nothing_of_losses_and_leaves_speed_decided() -> None:
    found = ledger(replace(paper(), page=paper().page | {"trained": planned(*CHEAP)}))
    for number in (*range(1, 5), *range(6, 12), 17):
        assert found[number].verdict == "not tested"
        assert "has a budget of 100M, the paper's" in found[number].reason
    assert {found[number].verdict for number in (5, 12, 13, 14)} == {"reproduced"}


def test_what_was_diagnosed_on_other_sequences_says_nothing_of_structure() -> None:
    """Beyond 128 of 512 tokens is not beyond 128 of 1024."""
    diagnosed = {"sequences": 4, "flow_length": 512, "rank_length": 512}
    records = replace(paper(), page=paper().page | {"diagnosed": diagnosed})
    found = ledger(records, 1, 4, *range(6, 12), 12)
    assert {found[number].verdict for number in range(6, 12)} == {"not tested"}
    assert (
        "on 4 sequences of 512 tokens, 512 for spectra, not 4 sequences of 1024" in found[10].reason
    )
    assert {found[number].verdict for number in (1, 4, 12)} == {"reproduced"}


def test_a_systems_table_is_told_from_the_papers_by_its_models_and_its_device_alone() -> None:
    page = paper_records(trained=planned(*LOCAL, *CHEAP)).page
    assert other_device(page, []) == other_device(page, ["NVIDIA GeForce RTX 5090"]) == ""
    for devices in (["NVIDIA H200"], ["NVIDIA GeForce RTX 5090", "NVIDIA H200"]):
        assert "Another GPU" in other_device(page, devices)
    assert "No GPU" in other_device(page, ["cpu"])
    assert other_device(paper_records(trained=planned(*SMALL)).page, ["NVIDIA H200"]) is None


def test_corpora_are_judged_by_their_sources_and_not_by_a_word_on_them() -> None:
    records = paper_records(notice="A word for the reader.")
    assert ledger(records, 17)[17].verdict == "reproduced"
    records = paper_records(trained=planned(*LOCAL))
    assert ledger(records, 17)[17].verdict == "not tested"
    cells = build(records).set_index(["table", "row", "column", "statistic"])["verdict"]
    for scale, verdict in (("10M", "not judged"), ("30M", "not judged"), ("100M", "within")):
        assert cells["main-results", scale, "mha_nll", "mean"] == verdict
        assert cells["main-results", scale, "delta", "value"] == "within"
