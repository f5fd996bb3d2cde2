"""The configuration: bad input is one clear line, and hashes cover results and nothing else."""

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from relation.config import Campaign, load_config, resolve
from relation.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
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


def refusal(action: Callable[[], object]) -> str:
    """The one line that an action is refused with."""
    with pytest.raises(InputError) as caught:
        action()
    message = str(caught.value)
    assert message and "\n" not in message
    return message


@cache
def campaign(name: str) -> Campaign:
    return resolve(config(), campaign=name)


LEVELS = (
    "",
    "assumptions",
    "training",
    "diagnostics",
    "efficiency",
    SMOKE,
    f"{SMOKE}.assumptions",
    f"{SMOKE}.backends",
    f"{SMOKE}.diagnostics",
    f"{SMOKE}.efficiency",
    SAMPLE,
    f"{SAMPLE}.source",
    SCALE,
    f"{SMOKE}.scales.30M.overrides.hybrid",
    *(f"{SMOKE}.systems{part}" for part in ("", ".baseline", ".fixed", ".matched")),
    *(f"{SMOKE}.systems.{part}" for part in ("linear_steady", "linear_long", "complexity")),
    "campaigns.paper.backend_overrides.single-head",
    "campaigns.paper.corpora.smollm.source",
    "campaigns.paper.corpora.smollm.source.streams.0",
    "campaigns.books.corpora.smollm.source",
    "residuals.scaled",
    "residuals.scaled.assumptions",
    "choices.sd-torch",
    "choices.sd-torch.assumptions",
    f"{SMOKE}.readings",
    f"{SMOKE}.readings.base",
)


@pytest.mark.parametrize("level", LEVELS)
def test_unknown_keys_are_refused_at_every_level(level: str) -> None:
    spoilt = changed((f"{level}.surplus".lstrip("."), 1))
    message = refusal(lambda: resolve(spoilt))
    assert "surplus" in message
    assert level in message


@pytest.mark.parametrize(
    "place, value, said",
    [
        (f"{SCALE}.d_model", 50, "d_model 50 is not divisible by 8 heads"),
        (f"{SCALE}.d_model", 40, "head width 5"),
        (f"{SCALE}.heads", 3, "3 heads"),
        (f"{SCALE}.micro", 7, "tokens_per_update"),
        (f"{SCALE}.context", 65, "tokens_per_update"),
        (f"{SCALE}.variants", ["mha", "ful"], "'ful'"),
        (f"{SCALE}.overrides", {"ful": {}}, "'ful'"),
        (f"{SCALE}.corpus", "books", "'books'"),
        (f"{SCALE}.vocabulary", 256, "vocabulary"),
        (f"{SCALE}.budget_tokens", "49576", "budget_tokens"),
        (f"{SCALE}.learning_rate", 0, "learning_rate"),
        (f"{SCALE}.learning_rate", float("nan"), "learning_rate"),
        (f"{SCALE}.learning_rate", float("inf"), "learning_rate"),
        (f"{SMOKE}.scales.30M.overrides.hybrid.layers", 10, "LLLF"),
        (f"{SMOKE}.seeds", [42, 42], "seeds"),
        (f"{SMOKE}.further_seeds", {"1B": [45]}, "further_seeds.1B is no scale of the campaign"),
        (f"{SMOKE}.further_seeds", {"10M": [44, 45]}, "seed 44 is one of the campaign's seeds"),
        (f"{SMOKE}.further_seeds", {"10M": [45, 45]}, "further_seeds"),
        (f"{SMOKE}.device", "tpu", "tpu"),
        (f"{SMOKE}.backends.full", "tile", "'tile' is not one of"),
        (f"{SMOKE}.systems.flash", "nope", "'nope' is not one of"),
        (f"{SMOKE}.systems.baseline.mha", "flsh", "'flsh' is not one of"),
        ("campaigns.paper.systems.matched.peers", ["refernce"], "'refernce' is not one of"),
        (f"{SMOKE}.systems.fixed.batches", {"1B": [1, 1]}, "1B"),
        (f"{SMOKE}.systems.complexity.scale", "1B", "1B"),
        (f"{SAMPLE}.source", {"kind": "web"}, "source"),
        (f"{SAMPLE}.source", {"kind": "files"}, "validation_modulus"),
        (f"{SAMPLE}.source", LOCAL | {"document_characters": 0}, "document_characters"),
        (f"{SAMPLE}.source", LOCAL | {"document_characters": None}, "document_characters"),
        (f"{SMOKE}.base", "nothing", "nothing"),
        (f"{SMOKE}.base", "smoke", "base"),
        (f"{SMOKE}.base", "tiny", "base"),
        (f"{SMOKE}.base", ["paper"], "base"),
        ("campaigns", [], "campaigns"),
        ("campaigns.smoke", None, "smoke"),
        ("campaigns.tiny", "smoke", "tiny"),
        ("assumptions.givens_first_pairing", "C", "givens_first_pairing"),
        ("training.betas", [0.9], "betas"),
        ("campaign", 3, "campaign"),
    ],
)
def test_bad_values_are_one_clear_line(place: str, value: Any, said: str) -> None:
    spoilt = changed((place, value))
    assert said in refusal(lambda: resolve(spoilt))


@pytest.mark.parametrize("key", ["campaign", "assumptions", "training", "campaigns"])
def test_a_missing_section_is_named(key: str) -> None:
    spoilt = config()
    del spoilt[key]
    assert key in refusal(lambda: resolve(spoilt))


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("absent.yaml", None, "absent.yaml"),
        ("bad.yaml", "a: [1\nb: 2\n", "line 2"),
        ("tab.yaml", "a:\n\t- 1\n", "line 2"),
        ("list.yaml", "- 1\n", "mapping"),
        ("empty.yaml", "", "mapping"),
        ("bad.json", '{"a": 1,\n}', "line 2"),
    ],
)
def test_an_unreadable_file_is_one_clear_line(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    message = refusal(lambda: load_config(tmp_path / name))
    assert said in message
    assert name in message


@pytest.mark.parametrize(
    "choice, said",
    [
        ({"campaign": "smok"}, "unknown campaign 'smok'"),
        ({"scales": "1B"}, "scales=1B"),
        ({"seeds": "42,7"}, "seeds=7"),
        ({"seeds": [True]}, "seeds"),
        ({"variants": ["mha", "ful"]}, "variants=ful"),
        ({"variants": ""}, "variants="),
        ({"scales": "10M,"}, "scales="),
    ],
)
def test_unknown_choices_are_refused_and_the_known_listed(choice: dict, said: str) -> None:
    message = refusal(lambda: resolve(config(), **choice))
    assert said in message
    if choice != {"seeds": [True]}:
        known = {"campaign": "smoke", "scales": "10M", "seeds": "42", "variants": "full"}
        assert known[next(iter(choice))] in message


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
