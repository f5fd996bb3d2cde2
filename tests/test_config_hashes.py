"""What identifies a result, and the paper's campaign as it resolves."""

from typing import Any

import pytest
from test_config import LOCAL, SAMPLE, SCALE, SMOKE, campaign, changed, config

from relation.pipeline.campaign import resolve
from relation.spec import RunSpec
from relation.variants import PAIRED, VARIANTS


def run_of(spoilt: dict, variant: str = "full", name: str = "smoke", scale: str = "10M") -> RunSpec:
    return resolve(spoilt, campaign=name).run(scale, variant, 42)


@pytest.mark.parametrize("place, value, same_job", [
    (f"{SMOKE}.device", "cuda", False),
    (f"{SMOKE}.backends.full", "reference", False),
    (f"{SMOKE}.backend_overrides", {"full": {"full": "reference"}}, False),
    (f"{SMOKE}.compile", True, False),
    ("training.deterministic", True, False),
    ("training.shard", True, True),
    ("training.checkpoint_seconds", 5, True),
    ("training.checkpoint_tokens", None, True),
    (f"{SMOKE}.title", "Another title", True),
    (f"{SAMPLE}.title", "Other words for the same texts", True),
    (f"{SCALE}.expected_tokens_per_second", 1, True),
    ("diagnostics.sequences", 1, True),
    (f"{SMOKE}.diagnostics.validation_tokens", 1, True),
    (f"{SMOKE}.efficiency.window", 0.5, True),
])  # fmt: skip
def test_execution_and_names_leave_the_identity_alone(place, value, same_job: bool) -> None:
    """Another way of execution makes the job stale; a key that determines no result does not."""
    before, after = campaign("smoke"), resolve(changed((place, value)), campaign="smoke")
    run, changed_run = (c.run("10M", "full", 42) for c in (before, after))
    assert changed_run.config_hash == run.config_hash
    assert (changed_run.job_hash == run.job_hash) == same_job
    for name, data in before.data.items():
        assert after.data[name].job_hash == data.job_hash
    if same_job:
        assert [s.job_hash for s in after.systems] == [s.job_hash for s in before.systems]


def test_the_campaigns_name_leaves_the_hash_alone() -> None:
    twin = config()
    twin["campaigns"]["twin"] = {"base": "smoke"}
    renamed = run_of(twin, name="twin")
    assert renamed.config_hash == run_of(config()).config_hash
    assert renamed.job_hash == run_of(config()).job_hash


def test_where_a_corpus_lies_changes_neither_identity_nor_job() -> None:
    """What lies there does: its fingerprint is compared, and is a parameter of the rule."""
    one, other = (resolve(config(), campaign="books", corpus=path) for path in ("a", "b"))
    for name, data in one.data.items():
        assert (data.path, other.data[name].path) == ("a", "b")
        assert data.config_hash == other.data[name].config_hash
        assert data.job_hash == other.data[name].job_hash
    assert one.runs == other.runs


@pytest.mark.parametrize("place, value, same", [
    (f"{SAMPLE}.title", "Other words for the same texts", True),
    (f"{SMOKE}.seeds", [7], True),
    (f"{SMOKE}.device", "cuda", True),
    (f"{SMOKE}.backend_overrides", {"full": {"full": "reference"}}, True),
    (f"{SCALE}.learning_rate", 0.011, True),
    ("training.checkpoint_seconds", 5, True),
    (f"{SCALE}.d_ff", 128, False),
    (f"{SCALE}.budget_tokens", 49577, False),
    (f"{SCALE}.variants", ["mha", "full"], False),
    ("assumptions.givens_first_pairing", "B", False),
])  # fmt: skip
def test_the_inventory_is_known_by_what_its_rows_are_made_from(place, value, same: bool) -> None:
    before = campaign("smoke").inventory_hash
    after = resolve(changed((place, value)), campaign="smoke").inventory_hash
    assert (after == before) == same


def test_a_choice_of_seeds_and_scales_leaves_the_inventory_whole() -> None:
    chosen = resolve(config(), campaign="smoke", seeds=43, scales="10M", variants="mha")
    assert chosen.inventory_hash == campaign("smoke").inventory_hash


def test_the_optimiser_is_part_of_every_benchmark() -> None:
    before = resolve(config(), campaign="smoke")
    after = resolve(changed(("training.weight_decay", 0.2)), campaign="smoke")
    pairs = zip(before.systems, after.systems, strict=True)
    assert all(a.config_hash != b.config_hash for a, b in pairs)


@pytest.mark.parametrize(
    "changes",
    [
        {"assumptions.adam_eps": 1e-6},
        {"assumptions.decay_embedding": False},
        {"assumptions.givens_first_pairing": "B"},
        {"assumptions.last_update": "drop"},
        {"assumptions.norm_eps": 1e-5},
        {"assumptions.plateau_fraction": 0.9},
        {"assumptions.scale_residual_init": True},
        {f"{SMOKE}.assumptions.init_std": 0.03},
        {"training.betas": [0.9, 0.99]},
        {"training.gradient_clip": 0.5},
        {"training.weight_decay": 0.0},
        {f"{SMOKE}.precision": "bf16"},
        {f"{SCALE}.budget_tokens": 49577},
        {f"{SCALE}.d_ff": 128},
        {f"{SCALE}.layers": 4},
        {f"{SCALE}.learning_rate": 0.011},
        {f"{SCALE}.micro": 4, f"{SCALE}.accumulation": 2},
        {f"{SCALE}.context": 128, f"{SCALE}.micro": 4},
        {f"{SCALE}.vocabulary": 513},
        {f"{SCALE}.warmup_tokens": 3073},
        {f"{SAMPLE}.source.validation_modulus": 49},
        {f"{SAMPLE}.train_tokens": 90_000},
        {f"{SAMPLE}.validation_tokens": 5_000},
        {f"{SAMPLE}.tokenizer_characters": 90_000},
    ],
    ids=lambda changes: next(iter(changes)).split(".")[-1],
)
def test_whatever_changes_the_result_changes_the_hash(changes: dict) -> None:
    assert run_of(changed(*changes.items())).config_hash != run_of(config()).config_hash


def test_short_documents_are_another_corpus() -> None:
    hashes = {
        run_of(changed((f"{SAMPLE}.source", LOCAL | cut))).config_hash
        for cut in ({}, {"document_characters": 700}, {"document_characters": 701})
    }
    assert len(hashes) == 3


def test_every_run_of_every_campaign_has_a_hash_of_its_own() -> None:
    for name in ("paper", "smoke", "tiny"):
        runs = campaign(name).planned_runs
        assert len({run.config_hash for run in runs}) == len(runs)


RETENTION = {
    "retention_input": "residual",
    "retention_a_range": [1.0, 8.0],
    "retention_dt_range": [0.01, 0.1],
}


@pytest.mark.parametrize(
    "assumption, value, touched",
    [
        ("givens_first_pairing", "B", {"full", "hybrid"}),
        *((name, value, {"hybrid"}) for name, value in RETENTION.items()),
        ("norm_eps", 1e-5, {"mha", "full", "hybrid"}),
    ],
)
def test_a_run_rests_only_on_assumptions_of_its_own_layers(
    assumption: str, value: Any, touched: set[str]
) -> None:
    before, after = config(), changed((f"assumptions.{assumption}", value))
    moved = {
        variant
        for variant in ("mha", "full", "hybrid")
        if run_of(before, variant, scale="30M").config_hash
        != run_of(after, variant, scale="30M").config_hash
    }
    assert moved == touched


PAPER = {
    # context, budget, warm-up, learning rate, corpus, {variant: (micro, accumulation)}
    "10M": (1024, 150_000_000, 1_500_000, 1e-3, "tinystories-4096", {"mha": (32, 4)}),
    "30M": (2048, 450_000_000, 4_500_000, 8e-4, "tinystories-4096", {"mha": (16, 4)}),
    "100M": (4096, 1_071_140_000, 10_711_400, 6e-4, "smollm-32768", {"mha": (2, 16)}),
}
RELATION_BATCH = {"10M": (32, 4), "30M": (16, 4), "100M": (4, 8)}


@pytest.mark.parametrize("scale", PAPER)
def test_the_papers_runs_are_those_of_its_appendix(scale: str) -> None:
    context, budget, warmup, rate, data, batches = PAPER[scale]
    runs = [run for run in campaign("paper").runs if run.scale == scale]
    assert {(r.context, r.budget_tokens, r.warmup_tokens) for r in runs} == {
        (context, budget, warmup)
    }
    assert {(r.learning_rate, r.data, r.tokens_per_update) for r in runs} == {(rate, data, 131_072)}
    assert {(r.precision, r.device, r.compile) for r in runs} == {("bf16", "cuda", True)}
    for run in runs:
        expected = batches.get(run.variant, RELATION_BATCH[scale])
        assert (run.micro, run.accumulation) == expected
        assert (run.betas, run.weight_decay, run.gradient_clip) == ([0.9, 0.95], 0.1, 1.0)


def test_the_papers_matrix() -> None:
    paper = campaign("paper")
    runs = paper.runs
    assert paper.seeds == (42, 43, 44)
    assert sum(run.variant in PAIRED for run in runs) == 18
    hybrids = [run for run in runs if run.variant == "hybrid"]
    assert [(h.scale, h.model["layout"], h.model["d_model"]) for h in hybrids] == [
        ("30M", "LLLF" * 3, 480)
    ] * 3
    ablations = [run for run in runs if run.variant not in (*PAIRED, "hybrid")]
    assert len(ablations) == 15
    assert {run.scale for run in ablations} == {"10M"}
    assert {run.variant for run in runs} == set(VARIANTS) - {"linear"}
    assert paper.omitted == ()


def test_the_papers_data_are_pinned() -> None:
    sources = {name: data.source for name, data in campaign("paper").data.items()}
    assert set(sources) == {"tinystories-4096", "smollm-32768"}
    pinned = {
        (name, s["path"], s.get("name"), s["revision"])
        for name, source in sources.items()
        for s in source["streams"]
    }
    smollm = ("smollm-32768", "HuggingFaceTB/smollm-corpus")
    revision = "3ba9d605774198c5868892d7a8deda78031a781f"
    assert pinned == {
        (
            "tinystories-4096",
            "roneneldan/TinyStories",
            None,
            "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64",
        ),
        (*smollm, "cosmopedia-v2", revision),
        (*smollm, "fineweb-edu-dedup", revision),
    }
    assert sources["tinystories-4096"]["validation_modulus"] is None
    assert sources["smollm-32768"]["validation_modulus"] == 1000
    assert campaign("paper").data["smollm-32768"].validation_tokens == 10_000_000


@pytest.mark.parametrize("name", ["books", "smoke", "tiny"])
def test_other_campaigns_hold_the_papers_matrix_and_have_a_word_on_comparing(name: str) -> None:
    other = campaign(name)
    kinds = {(run.scale, run.variant) for run in campaign("paper").runs}
    assert {(run.scale, run.variant) for run in other.runs} == kinds
    assert other.notice and not campaign("paper").notice
