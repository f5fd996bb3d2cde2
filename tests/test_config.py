"""The configuration: bad input is one clear line, and hashes cover results and nothing else."""

import json
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, campaign, refusal

from relation.ops import BACKENDS
from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from relation.pipeline.keys import documented_keys, schema
from relation.sections import GPU_ALONE, Training

CAMPAIGNS = ("paper", "books", "books-scaled", "readings", "smoke", "tiny")
SMOKE = "campaigns.smoke"
SAMPLE = f"{SMOKE}.corpora.sample"
SCALE = f"{SMOKE}.scales.10M"
LOCAL = {"kind": "files", "validation_modulus": 5}


@cache
def _config_text() -> str:
    return json.dumps(load_config(ROOT / "config.yaml"))


def config() -> dict:
    """A copy of the project's configuration that a test may spoil."""
    return json.loads(_config_text())


def changed(*changes: tuple[str, Any], base: dict | None = None) -> dict:
    """The configuration with values set at dotted places; list positions are numbers."""
    spoilt = deepcopy(base) if base is not None else config()
    for place, value in changes:
        *parents, last = (int(p) if p.isdigit() else p for p in place.split("."))
        node = spoilt
        for parent in parents:
            node = node[parent]
        node[last] = value
    return spoilt


@pytest.mark.parametrize(
    "level, misspelt, meant",
    [
        ("", "campagin", "campaign"),
        ("training", "gradient_clpi", "gradient_clip"),
        ("choices.sd-torch.assumptions", "linear_inti", "linear_init"),
        (f"{SMOKE}.diagnostics", "validatons", "validations"),
        (f"{SMOKE}.readings.base", "init_sdt", "init_std"),
        (f"{SMOKE}.systems.matched", "peer", "peers"),
        (f"{SMOKE}.scales.30M.overrides.hybrid", "head", "heads"),
        (f"{SAMPLE}.source", "validation_modulo", "validation_modulus"),
        ("campaigns.paper.corpora.smollm.source.streams.0", "revison", "revision"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest(level: str, misspelt: str, meant: str) -> None:
    message = refusal(lambda: resolve(changed((f"{level}.{misspelt}".lstrip("."), 1))))
    assert message.startswith(f"config: {level or 'top level'}: ")
    assert repr(misspelt) in message and repr(meant) in message


def test_a_key_that_nobody_knows_is_named_before_one_that_is_missing() -> None:
    spoilt = config()
    spoilt["training"]["gradient_clpi"] = spoilt["training"].pop("gradient_clip")
    assert "unknown key 'gradient_clpi'" in refusal(lambda: resolve(spoilt))
    assert "choose among betas, weight_decay" in refusal(
        lambda: resolve(changed(("training.xyz", 1)))
    )


@pytest.mark.parametrize("place, value, said", [
    # What the types refuse.
    (f"{SCALE}.budget_tokens", "49576", "'49576' should be a valid integer"),
    (f"{SCALE}.learning_rate", 0, "0 should be greater than 0"),
    (f"{SCALE}.learning_rate", float("nan"), "nan is not a finite number"),
    (f"{SCALE}.vocabulary", 65537, "65537 is greater than the maximum of 65536"),
    (f"{SCALE}.variants", ["mha", "ful"], "variants.1: 'ful' is not one of 'mha', 'full'"),
    (f"{SMOKE}.seeds", [42, 42], "seeds: 42 stands there twice"),
    (f"{SMOKE}.device", "tpu", "device: 'tpu' is not one of 'cpu' or 'cuda'"),
    (f"{SMOKE}.systems.baseline.mha", "flsh", "'flsh' is not one of"),
    (f"{SAMPLE}.source", {"kind": "web"}, "source: kind 'web' is not one of"),
    (f"{SAMPLE}.source", {"kind": "files"}, "source: 'validation_modulus' is missing"),
    (f"{SAMPLE}.source", LOCAL | {"document_characters": None}, "document_characters: None"),
    ("assumptions.init_std", "1/sqrt(D)", "init_std: '1/sqrt(D)' is not one of '1/sqrt(d)'"),
    ("assumptions.init_std", -1, "init_std: -1 should be greater than 0"),
    ("training.betas", [0.9], "training.betas: List should have at least 2 items"),
    ("campaigns.Own", {"base": "smoke"}, "campaigns: 'Own' does not match"),
    ("campaigns", config()["campaigns"] | {"../x": {"base": "smoke"}}, "'../x' does not match"),
    (f"{SMOKE}.corpora", {"../x": {"title": "x", "source": LOCAL}}, "'../x' does not match"),
    ("campaigns", [], "campaigns: [] is no mapping"),
    ("campaign", 3, "campaign: 3 should be a valid string"),
    ("campaign", None, "unknown campaign ''; config.yaml defines paper, books"),
    # What contradicts the rest.
    (f"{SMOKE}.base", "nothing", "base is 'nothing', which is not a campaign"),
    (f"{SMOKE}.base", "tiny", "base leads back to itself"),
    (f"{SMOKE}.base", ["paper"], "base is ['paper']"),
    ("campaigns.smoke", None, "campaigns.smoke is no mapping"),
    (f"{SCALE}.d_model", 50, "d_model 50 is not divisible by 8 heads"),
    (f"{SCALE}.micro", 7, "tokens_per_update"),
    (f"{SCALE}.warmup_tokens", 49576, "beyond the plateau"),
    (f"{SCALE}.corpus", "books", "'books'"),
    (f"{SMOKE}.scales.30M.overrides.hybrid.layers", 10, "LLLF"),
    (f"{SMOKE}.further_seeds", {"1B": [45]}, "further_seeds.1B is no scale of the campaign"),
    (f"{SMOKE}.further_seeds", {"10M": [44, 45]}, "seed 44 is one of the campaign's seeds"),
    (f"{SMOKE}.systems.fixed.batches", {"1B": [1, 1]}, "systems.fixed names '1B'"),
    (f"{SMOKE}.systems.complexity.scale", "1B", "systems.complexity names '1B'"),
])  # fmt: skip
def test_bad_values_are_one_clear_line(place: str, value: Any, said: str) -> None:
    spoilt = changed((place, value))
    assert said in refusal(lambda: resolve(spoilt))


def test_a_missing_section_is_named() -> None:
    spoilt = config()
    del spoilt["training"]
    assert refusal(lambda: resolve(spoilt)) == "config: top level: 'training' is missing"


@pytest.mark.parametrize("name, text, said", [
    ("absent.yaml", None, "no configuration file"),
    ("bad.yaml", "a: [1\nb: 2\n", "line 2"),
    ("list.yaml", "- 1\n", "mapping"),
    ("empty.yaml", "", "mapping"),
    ("bad.json", '{"a": 1,\n}', "line 2"),
])  # fmt: skip
def test_an_unreadable_file_is_one_clear_line(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    message = refusal(lambda: load_config(tmp_path / name))
    assert said in message
    assert name in message


@pytest.mark.parametrize("choice, said", [
    ({"campaign": "smok"}, "unknown campaign 'smok'; config.yaml defines paper, books"),
    ({"scales": "1B"}, "scales=1B: campaign smoke has no such scale; choose among 10M, 30M, 100M"),
    ({"scales": "10M,"}, "scales=: "),
    ({"seeds": "42,7"}, "seeds=7: "),
    ({"seeds": [True]}, "seeds: [True]"),
    ({"variants": ["mha", "ful"]}, "variants=ful: "),
    ({"campaign": "paper", "readings": "x"}, "choose among none"),
])  # fmt: skip
def test_unknown_choices_are_refused_and_the_known_listed(choice: dict, said: str) -> None:
    assert said in refusal(lambda: resolve(config(), **choice))


@pytest.mark.parametrize("name, variants, seeds", [
    ("smoke", "mha, full, exchange-only, raw-x, no-count, no-givens, single-head, hybrid",
     "42, 43, 44, 142, 143"),
    ("readings", "mha, full, exchange-only, no-count", "142, 143, 144"),
])  # fmt: skip
def test_what_a_campaign_trains_is_what_it_offers(name: str, variants: str, seeds: str) -> None:
    for key, offered in (("variants", variants), ("seeds", seeds)):
        message = refusal(lambda key=key: resolve(config(), campaign=name, **{key: "foo"}))
        assert message.endswith(f"choose among {offered}")
    # Nothing trains Linear Relation; a choice may keep its benchmarks.
    assert "no run left" in refusal(lambda: resolve(config(), campaign=name, variants="linear"))


def test_a_new_training_key_touches_one_place() -> None:
    """A run, the JSON Schema and the documentation take the section whole."""
    names = [each.name for each in fields(Training)]
    run = campaign("smoke").runs[0]
    assert {name: getattr(run, name) for name in names} == config()["training"]
    assert list(schema()["$defs"]["Training"]["properties"]) == names
    documented = {key.place: key for key in documented_keys()}
    assert all(documented[f"training.{name}"].meaning for name in names)
    assert documented["campaigns.NAME.scales.NAME.micro"].takes == "a whole number, at least 1"
    kinds = documented["campaigns.NAME.corpora.NAME.source.kind"].takes
    assert "files or huggingface" in kinds


@pytest.mark.parametrize("seeds", ["42, 43", "43,42", [42, 43], ["43", "42"]])
def test_choices_come_as_text_or_list(seeds: Any) -> None:
    chosen = resolve(config(), seeds=seeds)
    assert {run.seed for run in chosen.runs} == {42, 43}
    assert len(chosen.runs) == 24


@pytest.mark.parametrize("name", ["paper", "smoke"])
def test_every_benchmark_is_the_campaigns(name: str) -> None:
    """Where models are compiled there is a side more."""
    assert {spec.campaign for spec in campaign(name).planned_systems} == {name}


def test_the_materialised_operator_is_measured_as_written_and_compiled() -> None:
    for spec in campaign("paper").planned_systems:
        if spec.benchmark == "fixed":
            assert {side["side"]: side["backends"]["full"] for side in spec.sides} == {
                "reference": "reference",
                "full": "flash",
                "reference-compiled": "materialised",
            }


@pytest.mark.parametrize("seeds", [42, "42", [42]])
def test_one_seed_of_one_scale_and_two_variants(seeds: Any) -> None:
    chosen = resolve(config(), scales="10M", seeds=seeds, variants=["full", "mha"])
    assert [run.name for run in chosen.runs] == ["10M/mha/42", "10M/full/42"]
    assert chosen.planned_runs == campaign("smoke").runs
    assert {spec.scale for spec in chosen.systems} == {"10M"}
    reasons = {f"{o.scale}/{o.variant}/{o.seed}": o.reason for o in chosen.omitted}
    assert len(reasons) == 34
    assert reasons["10M/mha/43"] == "left out by seeds=42"
    assert reasons["10M/raw-x/42"] == "left out by variants=mha,full"
    assert reasons["30M/hybrid/44"] == "left out by scales=10M seeds=42 variants=mha,full"


def test_further_seeds_take_a_scale_that_trains_the_pair() -> None:
    lone = changed((f"{SCALE}.variants", ["mha"]), (f"{SMOKE}.further_seeds", {"10M": [45]}))
    assert "does not train both mha and full" in refusal(lambda: resolve(lone))


def test_an_empty_list_drops_the_further_seeds_of_a_base() -> None:
    own = changed(("campaigns.own", {"base": "books", "further_seeds": {"10M": []}}))
    assert resolve(own, campaign="books").planned_further
    assert resolve(own, campaign="own").planned_further == ()


@pytest.mark.parametrize("seeds, matrix, further", [
    (None, 24, 4), ("42", 12, 0), ("45", 0, 2), ("43,44", 12, 2),
])  # fmt: skip
def test_seeds_choose_among_those_of_the_matrix_and_the_further_ones(
    seeds: str | None, matrix: int, further: int
) -> None:
    chosen = resolve(config(), campaign="tiny", seeds=seeds)
    assert (len(chosen.runs), len(chosen.further_runs)) == (matrix, further)
    assert chosen.trained_runs == (*chosen.runs, *chosen.further_runs)
    assert chosen.planned_further == campaign("tiny").planned_further
    assert len(chosen.planned_runs) == len(chosen.runs) + len(chosen.omitted) == 24
    assert {(run.scale, run.variant) for run in chosen.planned_further} == {
        ("10M", "mha"),
        ("10M", "full"),
    }
    assert all(run in chosen.runs for run in chosen.paired_runs), "no further run is diagnosed"


def test_a_choice_that_leaves_no_run_is_refused() -> None:
    message = refusal(lambda: resolve(config(), campaign="tiny", scales="30M", seeds="45"))
    assert "no run left under scales=30M seeds=45" in message
    assert "choose among 42, 43, 44, 45" in refusal(
        lambda: resolve(config(), campaign="tiny", seeds="46")
    )


def test_choices_in_the_file_count_and_the_command_line_wins() -> None:
    base = changed(("scales", "10M"), ("seeds", 43))
    assert {(r.scale, r.seed) for r in resolve(base).runs} == {("10M", 43)}
    assert {(r.scale, r.seed) for r in resolve(base, seeds="44").runs} == {("10M", 44)}


def test_asking_for_what_does_not_exist() -> None:
    smoke = campaign("smoke")
    assert "10M/hybrid/42" in refusal(lambda: smoke.run("10M", "hybrid", 42))
    assert "fixed/1B" in refusal(lambda: smoke.benchmark("fixed", "1B"))


@pytest.mark.parametrize("name", CAMPAIGNS)
@pytest.mark.parametrize("restricted", [False, True])
def test_settings_resolve_again_to_the_same_campaign(name: str, restricted: bool) -> None:
    seed = 142 if name == "readings" else 42
    choice = {"scales": "10M", "seeds": seed} if restricted else {}
    first = resolve(config(), campaign=name, **choice)
    assert resolve(json.loads(json.dumps(first.settings))) == first


def test_a_campaigns_own_smoothing_window_stands_above_the_common_one() -> None:
    windows = {name: campaign(name).efficiency_window for name in ("paper", "books", "smoke")}
    assert windows == {"paper": 0.01, "books": 0.01, "smoke": 0.05}
    own = changed(("efficiency.window", 0.03), (f"{SMOKE}.efficiency.window", 0.2))
    assert resolve(own, campaign="smoke").efficiency_window == 0.2
    assert resolve(own, campaign="paper").efficiency_window == 0.03


@pytest.mark.parametrize("name", ["paper", "smoke", "tiny"])
def test_a_smoothing_window_holds_updates_enough_to_smooth(name: str) -> None:
    found = campaign(name)
    for run in found.runs:
        assert found.efficiency_window * run.budget_tokens > 2 * run.tokens_per_update


@pytest.mark.parametrize("operator, backend", GPU_ALONE)
def test_a_cpu_campaign_refuses_backends_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, operator: str, backend: str
) -> None:
    """But for those that Triton's interpreter runs, where it is chosen."""
    spoilt = changed(("campaigns.tiny.backends", {operator: backend}))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    said = refusal(lambda: resolve(spoilt, campaign="tiny"))
    assert said.startswith("config: scale ") and "the campaign's device is cpu" in said
    assert f"the backend {backend!r} of {operator} needs a CUDA GPU" in said
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if backend == "flash":
        assert resolve(spoilt, campaign="tiny").runs
    else:
        assert refusal(lambda: resolve(spoilt, campaign="tiny")) == said


def test_those_are_the_backends_that_a_cpu_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cpu = torch.device("cpu")
    assert {key for key in BACKENDS if BACKENDS[key].why_unavailable(cpu)} == {*GPU_ALONE}
