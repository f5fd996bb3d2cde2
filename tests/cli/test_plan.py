"""What a configuration plans: hashes of runs, variations, choices, and refused input."""

import shutil
from dataclasses import fields, make_dataclass, replace
from operator import attrgetter
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, refusal

from relation import plan, records
from relation.jobs import Run
from relation.variants import ARMS, VARIANTS, Variant, parameter_count
from report.site import assumptions

CAMPAIGNS = sorted(path.stem for path in (ROOT / "config").glob("*.yaml"))
SHIPPED = sorted(
    path.parent.name for path in (ROOT / "results/published").glob("*/runs.parquet")
    if path.parent.name in CAMPAIGNS
)  # fmt: skip


def load(**choices) -> plan.Campaign:
    return plan.load({"campaign": "smoke", **choices})


def mine(tmp_path: Path, text: str) -> plan.Campaign:
    """A campaign with this text as config/mine.yaml, next to the shipped configurations."""
    shutil.copytree(ROOT / "config", tmp_path / "config", dirs_exist_ok=True)
    (tmp_path / "config/mine.yaml").write_text(text)
    (tmp_path / "config.yaml").write_text("campaign: mine\n")
    return plan.load(tmp_path / "config.yaml")


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_campaign_plans_each_run_once_under_its_own_name(name: str) -> None:
    campaign = plan.load({"campaign": name})
    assert campaign.runs == campaign.planned
    assert len({run.hash for run in campaign.planned}) == len(campaign.planned)
    assert len({run.name for run in campaign.planned}) == len(campaign.planned)
    assert all(campaign.run(run.name) is run for run in campaign.planned)
    for run in campaign.planned:  # the texts are long enough for the diagnostics
        assert run.data.diagnosed_tokens > run.flow_sequences * run.flow_window
    assert len(campaign.columns) <= 4
    assert {c.variation for c in campaign.columns} <= set(campaign.variations)
    resolved = plan.load(campaign.resolved)
    assert [run.hash for run in resolved.planned] == [run.hash for run in campaign.planned]
    assert resolved.hash == campaign.hash


@pytest.mark.parametrize("name", SHIPPED)
def test_no_shipped_run_is_to_be_made(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)  # runs that were made here would count first
    campaign = plan.load({"campaign": name})
    shipped = records.read(ROOT / f"results/published/{name}/runs.parquet", "runs")
    names = shipped[["scale", "variation", "variant", "seed"]].astype(str).agg("/".join, axis=1)
    hashes = {run.name: run.hash for run in campaign.planned}
    assert dict(zip(names, shipped["hash"], strict=True)).items() <= hashes.items()
    files = campaign.files()
    assert not {f"runs/{each}/run.parquet" for each in names} & files.keys()
    flow = records.read(ROOT / f"results/published/{name}/flow.parquet", "flow")
    assert set(flow["hash"]) <= {run.flow_hash for run in campaign.planned}
    if name in ("anchor", "readings"):
        assert not [path for path in files if path.startswith(("runs", "flow", "length"))]


def test_a_hash_holds_what_determines_the_result_and_nothing_else() -> None:
    run = load().run("10M-mini/base/full/42")
    elsewhere = replace(
        run, campaign="x", scale="y", variation="z", device="cuda", compile=True, further=True,
        backends={"full": "flash"}, checkpoint_seconds=1.0, probes=3,
        deterministic=True, divergence="record", data=replace(run.data, path="/x", title="y"),
    )  # fmt: skip
    assert elsewhere.hash == run.hash
    others = [
        {"seed": 43}, {"learning_rate": 1e-3}, {"adam_eps": 1e-8}, {"precision": "bf16"},
        {"document_mask": "documents"}, {"decay_vectors": True}, {"init_key": "full"},
        {"model": replace(run.model, init_std=0.1)},
        {"data": replace(run.data, fingerprint="0" * 64)},
        {"data": replace(run.data, document_characters=700)},
    ]  # fmt: skip
    # A new field is part of the hash without being listed anywhere.
    grown = make_dataclass(
        "Grown", [("invented", float, 0.0)], bases=(Run,), frozen=True, kw_only=True
    )
    values = {field.name: getattr(run, field.name) for field in fields(run)}
    assert grown(**values).hash == run.hash != grown(**values, invented=1e-4).hash
    assert len({replace(run, **other).hash for other in others} | {run.hash}) == len(others) + 1
    # Options of the diagnostics change only the hash of the diagnostics.
    assert replace(run, flow_length=8).hash == run.hash
    assert replace(run, flow_length=8).flow_hash != run.flow_hash
    assert replace(run, seed=43).flow_hash != run.flow_hash


@pytest.mark.parametrize("kind", ["benchmarks", "recall", "check"])
def test_a_measurement_with_anything_changed_is_another(kind: str) -> None:
    jobs = getattr(plan.load({"campaign": "tiny"}), kind)
    job = jobs if kind == "check" else jobs[0]
    assert replace(job, campaign="x", variation="y").hash == job.hash
    names = [field.name for field in fields(job) if field.name not in ("campaign", "variation")]
    assert len({replace(job, **{name: "other"}).hash for name in names} | {job.hash}) > len(names)


def test_an_option_is_set_by_campaign_scale_override_and_variation_in_turn(tmp_path) -> None:
    campaign = mine(tmp_path, """
base: smoke
adam_eps: 1e-3
scales:
  10M-mini: {adam_eps: 2e-3, overrides: {full: {adam_eps: 3e-3}}}
  30M-mini: {variants: [mha, full]}
  100M-mini: null
variations:
  as-is: {}
  other: {scales: [10M-mini], variants: [mha, full], seeds: [7], adam_eps: 4e-3,
          overrides: {mha: {adam_eps: 5e-3}}}
""")  # fmt: skip
    eps = {run.name: run.adam_eps for run in campaign.planned}
    assert eps["10M-mini/as-is/mha/42"] == 2e-3
    assert eps["10M-mini/as-is/full/42"] == 3e-3
    assert eps["30M-mini/as-is/full/42"] == 1e-3
    other = {"10M-mini/other/mha/7": 5e-3, "10M-mini/other/full/7": 4e-3}
    assert {name: value for name, value in eps.items() if "/other/" in name} == other
    assert campaign.options("10M-mini", "other")["adam_eps"] == 4e-3
    assert {bench.scale for bench in campaign.benchmarks} == {"10M-mini", "30M-mini"}


def test_combined_variations_have_joined_names_and_can_be_changed_singly(tmp_path) -> None:
    campaign = mine(tmp_path, """
base: smoke
cross:
- {low: {learning_rate_factor: 0.5},
   high: {learning_rate_factor: 2.0, overrides: {full: {adam_eps: 1e-7}}}}
- {a: {}, b: {scale_residual_init: true, overrides: {full: {d_ff: 72}}}}
variations: {high-b: {seeds: [7]}, alone: {d_ff: 64}}
""")  # fmt: skip
    assert list(campaign.variations) == ["low-a", "low-b", "high-a", "high-b", "alone"]
    run = campaign.run("10M-mini/high-b/full/7")
    assert run.learning_rate == pytest.approx(2.4e-2) and run.model.scale_residual_init
    assert (run.adam_eps, run.model.d_ff) == (1e-7, 72)


def test_a_text_of_ones_own_has_its_own_fingerprint_and_a_mixer_its_own_optimiser(tmp_path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("A text of my own.\n" * 50)
    campaign = mine(
        tmp_path,
        f"""
base: smoke
corpora: {{sample: {{path: {text}}}}}
overrides: {{linear: {{weight_decay: 0.5}}}}
""",
    )
    theirs, ours = (next(iter(each.data.values())) for each in (load(), campaign))
    assert ours.fingerprint not in (None, theirs.fingerprint)
    decays = {job.mixer: job.optimizer["weight_decay"] for job in campaign.recall}
    assert decays["hybrid"] == 0.5 != decays["full"]


def test_a_one_off_changes_the_first_chosen_variation() -> None:
    campaign = load(scales="10M-mini", variations="gpt2", vary="learning_rate=2e-2 layers=2")
    run = campaign.run("10M-mini/gpt2+learning_rate=2e-2+layers=2/full/42")
    assert (run.learning_rate, run.model.layers, run.adam_eps) == (2e-2, 2, 1e-8)
    assert {each.variation for each in campaign.runs} == {"gpt2", run.variation}
    books = plan.load({"campaign": "books", "variations": "gpt2", "vary": "layers=4"})
    columns = [column.variation for column in books.columns]
    assert columns == ["gpt2", "nearest", "residual", "gpt2+layers=4"]


def test_a_one_off_is_for_the_chosen_scales_and_its_numbers_are_of_their_keys_type() -> None:
    campaign = plan.load({"campaign": "books", "scales": "10M", "vary": "micro=16"})
    assert {run.scale for run in campaign.planned if "micro" in run.variation} == {"10M"}
    whole, real = (load(vary=f"weight_decay={each}").runs[-1] for each in ("1", "1.0"))
    assert whole.hash == real.hash
    longer = load(scales="10M-mini", vary="context=256 micro=2")
    assert longer.runs[-1].flow_window == 256
    assert load(scales="10M-mini", vary="context=16").runs[-1].flow_length == 16


def test_a_one_off_also_changes_what_the_variation_sets_for_single_variants() -> None:
    vary = "learning_rate=1e-3"
    campaign = plan.load({"campaign": "fair", "variations": "tuned", "vary": vary})
    varied = [run for run in campaign.runs if run.variation == f"tuned+{vary}"]
    assert {run.variant for run in varied} == set(ARMS)
    assert {run.learning_rate for run in varied} == {1e-3}


def test_a_longer_context_moves_no_other_runs_flow(tmp_path) -> None:
    longer = (
        "base: smoke\nvariations: {base: {}, long: {scales: [10M-mini], context: 512, micro: 1}}"
    )
    run = "10M-mini/base/full/42"
    assert mine(tmp_path, longer).run(run).flow_hash == load().run(run).flow_hash
    # If only variations name a corpus, all of its checkpoints read the same windows.
    both = "{corpus: own, scales: [10M-mini, 30M-mini]}"
    text = f"base: smoke\ncorpora: {{own: {{path: own.txt}}}}\nvariations: {{base: {both}}}"
    assert {each.flow_window for each in mine(tmp_path, text).planned} == {128}


def test_a_text_is_long_enough_for_the_diagnostics_of_every_scale(tmp_path) -> None:
    """Here the scale with the most sequences does not have the longest context."""
    text = "base: smoke\nscales: {10M-mini: {flow_sequences: 40}, 100M-mini: null}\n"
    (data,) = mine(tmp_path, text).data.values()
    assert data.diagnosed_tokens == 40 * 128 + 1


@pytest.mark.parametrize(
    "scales, corpora",
    [
        ("30M-mini: {vocabulary: 310}", ["sample-300", "sample-310"]),
        ("10M-mini: {variants: []}", ["sample-300"]),
    ],
)
def test_a_benchmark_may_read_a_text_that_no_run_reads(tmp_path, scales, corpora) -> None:
    systems = "systems: {matched: {batches: {10M-mini: [4, 2], 30M-mini: [4, 2]}}}"
    campaign = mine(tmp_path, f"base: tiny\nscales: {{{scales}}}\n{systems}\n")
    prepared = [path.split("/")[1] for path in campaign.files() if path.startswith("data/")]
    assert prepared == corpora


def test_a_benchmark_may_have_no_batches_and_checks_need_named_backends(tmp_path) -> None:
    campaign = mine(tmp_path, "base: tiny\nsystems: {matched: {batches: {}}}\n")
    assert {bench.benchmark for bench in campaign.benchmarks} == {"complexity", "decode"}
    values = plan.load({"campaign": "tiny"}).resolved["settings"] | {"backends": {"mha": "flash"}}
    text = yaml.safe_dump(values | {"overrides": {}})
    assert "mine.yaml: check: backends has no full" in refusal(lambda: mine(tmp_path, text))


def test_choices_restrict_runs_and_benchmarks() -> None:
    campaign = load(scales="10M-mini", seeds=42, variants="mha,full", variations=["base"])
    names = [run.name for run in campaign.runs]
    assert names == ["10M-mini/base/mha/42", "10M-mini/base/full/42"]
    assert {bench.scale for bench in campaign.benchmarks} == {"10M-mini"}
    assert {each.mixer for each in campaign.recall} == {"full"}
    assert len(campaign.planned) == len(load().planned) > 36
    assert campaign.hashes() == load().hashes()  # shipped records of other choices stay
    benched = plan.load({"campaign": "tiny", "variants": "mha-gate"})  # no scale trains it
    assert not benched.runs and [bench.benchmark for bench in benched.benchmarks] == ["matched"]


def test_a_variant_may_change_what_a_campaign_sets_for_all(tmp_path, monkeypatch) -> None:
    wide = Variant("no-count", "Wide", changes={"d_ff": 64, "init_std": 0.1})
    monkeypatch.setitem(VARIANTS, "no-count", wide)
    models = {run.variant: run.model for run in mine(tmp_path, "base: smoke\n").planned}
    assert (models["no-count"].d_ff, models["no-count"].init_std) == (64, 0.1)
    assert models["full"].d_ff == models["mha"].d_ff == 96
    text = "base: smoke\noverrides: {no-count: {d_ff: 32}}\n"
    assert "Wide has d_ff 64, not 32" in refusal(lambda: mine(tmp_path, text))


@pytest.mark.parametrize("scale", ["10M", "30M", "100M", "100M28pc"])
def test_the_arms_of_the_fair_comparison_have_the_same_count_of_parameters(scale: str) -> None:
    matrix = plan.load({"campaign": "fair"}).matrix
    counts = [parameter_count(matrix.model_at(scale, arm)) for arm in ARMS]
    assert len(counts) == 10 and max(counts) / min(counts) - 1 < 0.002


def test_pairs_beyond_the_matrix_are_trained_and_not_diagnosed(tmp_path) -> None:
    campaign = plan.load({"campaign": "books"})
    matrix, further = campaign.run("10M/nearest/full/42"), campaign.run("10M/nearest/full/72")
    assert campaign.measured(matrix).keys() == {"flow", "lengths"}
    assert not campaign.measured(further)
    assert "flow" not in campaign.measured(campaign.run("10M/nearest/no-count/42"))
    for changed in "further_seeds: null", "variations: {own: {}}":
        assert not any(run.further for run in mine(tmp_path, f"base: books\n{changed}").planned)


def test_a_column_goes_with_the_scales_that_it_shows(tmp_path: Path) -> None:
    """The base's variation gpt2 has only the scale that the campaign removes."""
    rest = mine(tmp_path, "base: smoke\nscales: {10M-mini: null}")
    assert [column.variation for column in rest.columns] == ["base"]
    assert {run.variation for run in rest.planned} == {"base"} and list(assumptions(rest))
    books = mine(tmp_path, "base: books\nscales: {30M: null, 100M28pc: null}")
    assert [column.variation for column in books.columns] == ["nearest", "gpt2", "residual"]


@pytest.mark.parametrize(
    "choices, message",
    [
        ({"campaign": "smok"}, "unknown campaign 'smok'; did you mean 'smoke'?"),
        ({"campagn": "smoke"}, "unknown key 'campagn'; did you mean 'campaign'?"),
        ({"scales": "10M"}, "scales=10M: campaign smoke has no such scale"),
        ({"published": "maybe"}, "published: 'maybe' should be True, False"),
        ({"vary": "learning_rate"}, "'learning_rate' is no new KEY=VALUE"),
        ({"vary": "micro=4,layers=2"}, "with spaces between keys and none in values"),
        ({"vary": "micro=4 micro=2"}, "'micro=2' is no new KEY=VALUE; write each key once"),
        ({"vary": "tau=1"}, "unknown key 'tau'; it is a field of the model: make a variant of it"),
        ({"vary": "learning_rate=-1"}, "learning_rate: -1 should be greater than 0"),
        ({"vary": "betas=[0.9,1]"}, "betas.1: 1 should be less than 1"),
        ({"corpus": "missing.txt"}, "corpus missing.txt does not exist"),
        ({"corpus": str(ROOT / "README.md")}, "README.md is no .txt or .parquet file; give one"),
        ({"corpus": ""}, "does not exist; give a text file, a folder or"),
        ({"variants": "linear", "scales": "10M-mini"}, "has no run left"),
        ({"vary": "scales=[30M]"}, "scales.0: there is no scale '30M'"),
        ({"campaign": None}, "the key 'campaign' is missing"),
        ({"corpus": "owner/name@main"}, "OWNER/NAME@REVISION with the 40 digits"),
        ({"campaign": "fair", "scales": "30M", "vary": "learning_rate=1e-3"}, "run of rate-0.5, "),
        ({"vary": "learning_rate=1.2e-2"}, "makes no new run of base, the first chosen"),
    ],
)
def test_a_wrong_choice_is_refused_in_a_line(choices: dict, message: str) -> None:
    assert message in refusal(lambda: load(**choices))


@pytest.mark.parametrize(
    "text, message",
    [
        ("base: smoke\nvariations: {x: {adm_eps: 1}}", "variations.x: unknown key 'adm_eps'; did"),
        ("base: smoke\nvariations: {x: 3}", "variations.x: 3 should be a valid dictionary"),
        ("base: smoke\nbackends: {mha: cudn}", "backends.mha: 'cudn' should be 'reference'"),
        ("base: smoke\nbackends: {mha: cudnn}", "backend cudnn of mha needs a GPU"),
        ("base: smoke\nbackends: {full: flex}", "backend flex of full needs a GPU"),
        ("base: smoke\nd_model: 1.5", "d_model: 1.5 should be a valid integer"),
        ("base: smok", "unknown campaign 'smok' (base of mine); did you mean 'smoke'?"),
        ("base: mine", "base 'mine' leads back to itself"),
        ("base: smoke\nvariations: {x: {corpus: y}}", "there is no corpus 'y'"),
        ("base: smoke\ncorpora: {y: {path: y}}", "no scale reads it; they read sample"),
        ("base: books\ncorpora: {y: {path: y}}\ncorpus: y", "corpus: every scale sets its own"),
        ("base: tiny\ncross: [{a: {}, a-b: {}}, {c: {}, b-c: {}}]", "are called a-b-c; rename"),
        ("base: smoke\ncorpora: {smaple: {train_tokens: 9}}", "reads it; they read sample"),
        ("base: smoke\nvariations: {x: {heads: 7}}", "not divisible by 7 heads"),
        ("base: smoke\nvariations: {x: {micro: 3}}", "512 is not a multiple of micro 3 x"),
        ("base: smoke\nvariations: {x: {warmup_tokens: 49000}}", "end after the plateau, "),
        ("base: books\ndocument_mask: documents\nbackends: {mha: cudnn}", "takes no documents"),
        ("base: readings\nlength: {windows: 2}", "length: the key 'variants' is missing; give it"),
        ("base: smoke\ncorpora: {sample: {path: null}}", "corpora.sample has no path and no str"),
        ("base: paper\ncorpora: {tinystories: {path: y.txt}}", "path and streams; set one"),
        ("base: paper\ncorpora: {tinystories: {streams: [{name: x}]}}", "the key 'path' is mis"),
        ("base: smoke\nrecall: {tasks: [[6, 2]]}", "2 pairs need an even length of at least 8"),
        ("base: smoke\nrecall: {heads: 3}", "mine.yaml: recall: d_model 32 is not divisible by 3"),
        ("base: smoke\nrecall: {warmup_updates: 9999}", "recall: warmup_updates end after the pl"),
        ("base: paper\ncorpora: {tinystories: {streams: [{path: a/b}]}}", "'revision' is missing"),
        ("base: smoke\ncolumns: [{variation: gpt}]", "no variation 'gpt'; did you mean 'gpt2'?"),
        (f"base: smoke\ncolumns: {[{'variation': 'gpt2'}] * 5}", "List should have at most 4"),
        (f"base: smoke\ncolumns: {[{'variation': 'gpt2'}] * 2}", "columns: give mine/gpt2 once"),
        ("base: smoke\nlength: {scales: [30M-min]}", "no scale '30M-min'; did you mean '30M-mini'"),
        ("base: smoke\nsystems: {matched: {batches: {x: [8, 1]}}}", "batches.x: there is no scale"),
        ("base: tiny\ndiagnosed: [no-count]", "no scale trains no-count; choose among mha, full"),
        ("base: smoke\nlength: {variants: [linear]}", "or length: no scale trains linear"),
        ("base: smoke\ndiagnosed: [hybrid]", "diagnosed.0: 'hybrid' should be 'mha', 'full', "),
        ("base: smoke\nscales: {10M-mini: null, 30M-mini: null, 100M-mini: null}", "no run left"),
        ("base: smoke\nmicro: 4\nmicro: 4\n", "mine.yaml line 3 is not YAML: the key 'micro'"),
        ("base: smoke\n? [a, b]\n: 4\n", "mine.yaml line 2 is not YAML: found unhashable key"),
        ("base: smoke\nseeds: [99999999999999999999]", "should be less than"),
        ("base: smoke\nseeds: [4, 5, 4]", "mine.yaml: seeds [4, 5, 4]: give each"),
        ("base: smoke\ncolumns: [{variation: base, scales: []}]", "List should have at least 1"),
        ("base: smoke\nvariations: {x: {seeds: []}}", "x.seeds: List should have at least 1 item"),
    ],
)
def test_a_wrong_campaign_is_refused_with_its_place(tmp_path, text: str, message: str) -> None:
    assert message in refusal(lambda: mine(tmp_path, text))


@pytest.mark.parametrize("base, unused", [("books", "tinystories"), ("smoke", "sample")])
def test_a_campaign_names_its_own_text(tmp_path: Path, base: str, unused: str) -> None:
    variations = "variations: {base: {corpus: y}}"
    campaign = mine(tmp_path, f"base: {base}\ncorpora: {{y: {{path: y.txt}}}}\n{variations}\n")
    assert {run.data.title for run in campaign.planned} == {"y"}
    assert not any(unused in path for path in campaign.files())


def test_texts_given_are_known_by_their_content(tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time.\n" * 50)
    first = load(corpus=str(text)).run("10M-mini/base/full/42")
    assert first.data.title == "text.txt" and first.data.validation_modulus is None
    assert first.hash != load().run(first.name).hash
    # Both ways to name a text read as much of it; the sample's limits are of the sample.
    variations = "variations: {base: {corpus: y}}"
    own = mine(tmp_path, f"base: smoke\ncorpora: {{y: {{path: {text}}}}}\n{variations}\n")
    limits = attrgetter("train_tokens", "validation_tokens", "tokenizer_characters")
    assert limits(first.data) == limits(own.run(first.name).data)
    moved = text.rename(tmp_path / "moved.txt")
    assert load(corpus=str(moved)).run(first.name).hash == first.hash
    revision = 10 * "1a2b"
    hub = load(corpus=f"owner/name@{revision}").run(first.name)
    assert (hub.data.path, hub.data.title) == (None, "name")
    assert hub.data.source == {"streams": [{"path": "owner/name", "revision": revision}]}
