"""Readings as runs: what a choice changes, what readings share, and what is gathered of them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import ROOT, campaign
from sample import without_texts
from test_config import changed, config
from training import run_spec, small_model, write_corpus

from relation.cli import main
from relation.errors import InputError
from relation.flow.diagnose import diagnose
from relation.flow.probe import FlowProbe
from relation.nn import Decoder
from relation.pipeline import gather as multiverse
from relation.pipeline.campaign import Campaign, resolve
from relation.pipeline.places import READINGS, diagnostics_path, run_path
from relation.pipeline.publish import publish
from relation.pipeline.readings import output_ratio, start_ratio
from relation.pipeline.results import Results
from relation.train.optimizer import build_optimizer
from relation.train.run import train
from relation.variants import ModelConfig

SMALL = {"layers": 2, "d_model": 64, "heads": 4, "d_ff": 128, "vocab_size": 300}


def initialised(**changes) -> Decoder:
    model = Decoder(ModelConfig.for_variant("full", **SMALL, **changes))
    model.initialise(7)
    return model


def deviations(model: Decoder) -> dict[str, float]:
    return {n: p.std().item() for n, p in model.named_parameters() if p.ndim == 2}


def test_every_choice_is_tried_under_both_residual_scales() -> None:
    found = campaign("readings").readings
    assert [r.residual for r in found] == ["unscaled", "scaled"] * (len(found) // 2)
    choices = set(config()["choices"])
    others = "anchor", "anchor-10m", "documents-10m", "fair"
    elsewhere = {r.choice for name in others for r in campaign(name).readings}
    tried = {r.choice for r in found}
    assert tried | elsewhere == choices
    assert [r.name for r in found[:2]] == ["unscaled-sd-0.02", "scaled-sd-0.02"]
    for reading in found:
        scaled = {run.model["scale_residual_init"] for run in reading.runs}
        assert scaled == {reading.residual == "scaled"}


def test_no_two_readings_are_the_same_but_for_what_they_share() -> None:
    found = campaign("readings")
    hashes = [run.config_hash for run in found.reading_runs]
    assert len(set(hashes)) == len(hashes)
    shared = [r for r in found.readings if any(run.reading != r.name for run in r.runs)]
    assert [r.choice for r in shared] == ["separate-weights"] * 2
    for reading in shared:
        assert {run.variant for run in reading.runs if run.reading != reading.name} == {"mha"}


@pytest.mark.parametrize("choice, changes", [
    ("sd-0.02", {"init_std": 0.02}),
    ("sd-rsqrt-d", {"init_std": 384**-0.5}),
    ("sd-small", {"init_std": (2 / (5 * 384)) ** 0.5}),
    ("sd-torch", {"linear_init": "torch"}),
    ("embedding-sd", {"embedding_std": 384**-0.5}),
    ("embedding-times-sqrt-d", {"embedding_multiplier": 384**0.5}),
    ("decay-all", {"decay_vectors": True}),
    ("decay-no-embedding", {"decay_embedding": False}),
    ("adam-eps", {"adam_eps": 1e-5}),
    ("lr-half", {"learning_rate": 5e-4}),
    ("lr-twice", {"learning_rate": 2e-3}),
    ("short-books", {"data": "short-4096"}),
    ("separate-weights", {"init_key": "full"}),
])  # fmt: skip
def test_a_choice_changes_what_it_names(choice: str, changes: dict) -> None:
    for reading in campaign("readings").readings:
        if reading.choice == choice:
            run = reading.runs[-1]
            found = {name: run.model.get(name, getattr(run, name, None)) for name in changes}
            assert found == pytest.approx(changes)


def test_the_campaigns_own_assumptions_leave_the_readings_alone() -> None:
    """A reading that the rule chose becomes the default; the readings stay what they were."""
    other = changed(("assumptions.decay_vectors", True), ("assumptions.init_std", 0.5))
    before, after = (resolve(c, campaign="readings").reading_runs for c in (config(), other))
    assert [run.config_hash for run in before] == [run.config_hash for run in after]


def test_an_option_that_is_off_is_in_no_hash() -> None:
    """Records made before an option was there keep their hash."""
    spec = run_spec(model=small_model("full"))
    assert spec.config_hash == replace(spec, decay_vectors=None, reading="x").config_hash
    assert spec.config_hash != replace(spec, decay_vectors=True).config_hash
    assert spec.config_hash != replace(spec, init_key="full").config_hash


def test_readings_alone_train_nothing_of_the_matrix() -> None:
    found = campaign("readings")
    assert not found.runs and not found.systems and len(found.omitted) == len(found.planned_runs)


def test_restrictions_choose_among_the_readings() -> None:
    loaded = config()
    one = resolve(loaded, campaign="readings", readings="scaled-sd-small", variants="mha")
    assert [run.name for run in one.reading_runs] == ["scaled-sd-small/mha/142"]
    assert not resolve(loaded, campaign="smoke", seeds="42").reading_runs
    with pytest.raises(InputError, match="no such reading"):
        resolve(loaded, campaign="readings", readings="none")


@pytest.mark.parametrize("changes, message", [
    ({"further": ["unscaled-none"]}, "none of its readings"),
    ({"choices": ["none"]}, "choices does not define"),
    ({"ablations": ["mha"]}, "ablations.0: 'mha' is not one of"),
    ({"seeds": [42]}, "seed 42 is there twice or is the matrix's"),
    ({"scale": "1B"}, "no scale of the campaign"),
])  # fmt: skip
def test_readings_that_contradict_themselves_are_refused(changes: dict, message: str) -> None:
    spoilt = config()
    spoilt["campaigns"]["smoke"]["readings"] |= changes
    with pytest.raises(InputError, match=message):
        resolve(spoilt, campaign="smoke")


def test_pytorchs_default_is_what_a_linear_layer_starts_with() -> None:
    model = initialised(linear_init="torch", init_std=0.02)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and name != "embedding.weight":
            bound = parameter.shape[1] ** -0.5
            assert parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert deviations(model)["embedding.weight"] == pytest.approx(0.02, rel=0.05)


def test_the_embedding_may_have_a_deviation_of_its_own() -> None:
    own, plain = deviations(initialised(embedding_std=0.125)), deviations(initialised())
    assert own.pop("embedding.weight") == pytest.approx(0.125, rel=0.05)
    plain.pop("embedding.weight")
    assert own == plain


@pytest.mark.parametrize("linear_init", [None, "torch"])
def test_the_residual_scale_divides_two_matrices_a_layer(linear_init: str | None) -> None:
    whole = initialised(linear_init=linear_init).state_dict()
    scaled = initialised(linear_init=linear_init, scale_residual_init=True).state_dict()
    for name, value in whole.items():
        residual = name.endswith(("mixer.wo.weight", "ffn.down.weight"))
        torch.testing.assert_close(scaled[name], value / 2 if residual else value)


def test_the_multiplier_scales_what_every_reader_of_tokens_starts_from() -> None:
    """Forward, decoding and flows see one model: that whose embedding is read times m."""
    tokens = torch.arange(6)[None]
    model = initialised(embedding_multiplier=3.0)
    torch.testing.assert_close(model.embed(tokens), 3 * model.embedding(tokens))
    logits = model(tokens)
    assert not torch.allclose(logits, initialised()(tokens))
    torch.testing.assert_close(model.decode(tokens, model.decode_state()), logits)
    assert len(list(model.flows(tokens))) == SMALL["layers"]


def test_one_number_says_what_a_token_weighs_at_the_start() -> None:
    def ratio(**changes) -> float:
        return start_ratio(ModelConfig.for_variant("full", **SMALL, **changes))

    assert ratio(init_std=0.02) == pytest.approx(1 / (64 * 0.02))
    assert ratio(init_std=0.02, scale_residual_init=True) == pytest.approx(2 / (64 * 0.02))
    assert ratio(init_std=0.02, embedding_std=0.1, embedding_multiplier=3.0) == pytest.approx(
        3 * 0.1 / (64 * 0.02**2)
    )
    assert ratio(init_std=0.02, linear_init="torch") == pytest.approx(3 * 0.02)


def test_another_number_says_how_large_the_embedding_starts_beside_what_writes_to_it() -> None:
    def ratio(**changes) -> float:
        return output_ratio(ModelConfig.for_variant("full", **SMALL, **changes))

    for std in (0.02, 0.1):
        assert ratio(init_std=std) == pytest.approx(1)
        assert ratio(init_std=std, scale_residual_init=True) == pytest.approx(2)
        assert ratio(init_std=std, embedding_multiplier=0.5) == pytest.approx(0.5)
    assert ratio(init_std=0.02, embedding_std=0.1) == pytest.approx(5)
    assert ratio(init_std=0.02, linear_init="torch") == pytest.approx(0.02 * 192**0.5)


def test_dividing_all_that_writes_to_the_residual_stream_changes_nothing_at_the_start() -> None:
    tokens = torch.arange(12)[None]
    even = {"init_std": 0.05, "norm_eps": 1e-12}
    whole = initialised(**even).double()(tokens)
    alone = initialised(**even, scale_residual_init=True)
    divided = initialised(**even, scale_residual_init=True, embedding_multiplier=0.5)
    torch.testing.assert_close(divided.double()(tokens), whole, rtol=1e-6, atol=1e-9)
    assert not torch.allclose(alone.double()(tokens), whole, rtol=1e-2)


def test_a_key_gives_all_weights_another_draw() -> None:
    model = initialised()
    before = {n: p.clone() for n, p in model.named_parameters() if p.ndim == 2}
    model.initialise(7, "full")
    assert all(not torch.equal(before[n], p) for n, p in model.named_parameters() if n in before)


@pytest.mark.parametrize("embedding, vectors", [(True, False), (False, False), (True, True)])
def test_weight_decay_reaches_what_it_is_told_to(embedding: bool, vectors: bool) -> None:
    model = initialised()
    optimizer = build_optimizer(model, 1e-3, (0.9, 0.95), 1e-8, 0.1, embedding, vectors)
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    for name, parameter in model.named_parameters():
        wanted = vectors if parameter.ndim < 2 else embedding or name != "embedding.weight"
        assert (id(parameter) in decayed) == wanted, name
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two runs of one reading of the tiny campaign, trained and diagnosed."""
    root = tmp_path_factory.mktemp("readings")
    tiny = campaign("tiny", variants="mha,full")
    results = Results(without_texts(tiny), root)
    data = write_corpus(root / "corpus", vocabulary=300)
    for run in tiny.reading_runs[:2]:
        folder = results.own_folder / run_path(run)
        sampling = tiny.diagnostics_spec(run, 1)
        probe = FlowProbe(sampling, 1, data, run.model_config().vocab_size)
        train(run, data, folder, root / "resume", probes=(probe,))
        spec = tiny.diagnostics_spec(run)
        output = results.own_folder / diagnostics_path(run)
        diagnose(spec, run, folder / "model.safetensors", data, output)
    return results


def test_records_are_gathered_into_a_file_a_kind(gathered: Results) -> None:
    paths = multiverse.collect(gathered)
    assert [path.stem for path in paths] == ["runs", "losses", "probes", "diagnoses"]
    found = multiverse.load_readings(gathered)
    assert (found.planned, found.there) == (4, 2)
    assert set(found.runs["reading"]) == {"unscaled-sd-0.02"}
    assert list(found.runs["variant"]) == ["mha", "full"]
    assert found.losses.groupby("variant")["tokens"].max().to_dict() == {"mha": 600, "full": 600}
    flow = pd.read_parquet(
        gathered.own_folder / diagnostics_path(gathered.campaign.reading_runs[0])
    )
    head = flow[(flow["layer"] == 1) & (flow["head"] == 0) & (flow["metric"] == "self_flow")]
    ours = found.diagnoses.query(
        "variant == 'mha' and layer == 1 and head == 0 and metric == 'self_flow'"
    )
    assert ours["value"].item() == pytest.approx(head["value"].mean(), rel=1e-6)
    assert ours["count"].item() == head["count"].sum()


def reconfigured(campaign: Campaign, first: int = 0) -> Campaign:
    """The campaign with its readings from one on, at another learning rate."""
    found = []
    for reading in campaign.readings[first:]:
        runs = tuple(replace(run, learning_rate=1.0) for run in reading.runs)
        found.append(replace(reading, runs=runs))
    return replace(campaign, readings=tuple(found))


def test_a_run_of_another_configuration_is_not_gathered(gathered: Results) -> None:
    other = reconfigured(gathered.campaign)
    assert multiverse.gather(Results(other, gathered.root, published=False))["runs"].empty


def test_runs_of_a_seed_must_have_read_the_same_windows(gathered: Results) -> None:
    runs = multiverse.gather(gathered)["runs"]
    runs.loc[0, "order_hash"] = "another"
    with pytest.raises(InputError, match="read different windows"):
        multiverse.check_pairs(runs)


def test_a_run_without_diagnostics_holds_up_no_publishing(
    gathered: Results, tmp_path: Path
) -> None:
    """It is left out, as a run of the matrix is; alone, it is nothing to publish."""
    run = gathered.campaign.reading_runs[0]
    fresh = Results(gathered.campaign, tmp_path)
    shutil.copytree(gathered.own_folder / run_path(run), fresh.own_folder / run_path(run))
    (fresh.own_folder / diagnostics_path(run)).unlink()
    with pytest.raises(InputError, match="no complete record to publish"):
        publish(gathered.campaign, fresh)


def test_the_command_lists_every_reading_and_what_runs_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what is shipped: the answer, the distances, and the pairs that the rule asks for."""
    monkeypatch.chdir(ROOT)
    assert main(["readings"]) == 0
    printed = capsys.readouterr().out
    names = {line.split()[0] for line in printed.splitlines() if line}
    assert names >= {reading.name for reading in campaign("readings").readings}
    answers = ("chosen", "not identified", "texts disagree", "unfinished")
    assert printed.split("\n\n")[1].startswith(answers)
    assert "Next pairs" in printed


def test_the_command_needs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config_file = str(ROOT / "config.yaml")
    assert main(["readings", "--config", config_file]) != 0
    assert "no finished run of a reading" in capsys.readouterr().err


def test_publishing_keeps_every_shipped_run(gathered: Results) -> None:
    """Whatever is configured or chosen now, only a run made here replaces a shipped one."""
    publish(gathered.campaign, gathered)
    folder = gathered.shipped.folder / READINGS
    runs = pd.read_parquet(folder / "runs.parquet")
    other = reconfigured(gathered.campaign, first=1)
    rows = multiverse.gather_to_ship(Results(other, gathered.root, published=False))
    assert sorted(rows["runs"]["config_hash"]) == sorted(runs["config_hash"])
    assert multiverse.gather(Results(other, gathered.root))["runs"].empty, "none is current"
    again = multiverse.gather_to_ship(gathered)
    assert len(again["runs"]) == len(runs) and len(again["losses"]) > 0


def test_publishing_takes_equal_runs_that_another_campaign_has_shipped(
    gathered: Results, tmp_path: Path
) -> None:
    """Of the same name, configuration and texts; a changed file of the lender is refused."""
    lender = Results(gathered.campaign, tmp_path)
    shutil.copytree(gathered.own_folder, lender.own_folder)
    publish(lender.campaign, lender)
    borrower = replace(lender, campaign=replace(lender.campaign, name="borrower"))
    folder = run_path(lender.campaign.reading_runs[0])
    shutil.copytree(lender.own_folder / folder, borrower.own_folder / folder)
    rows, theirs = multiverse.gather_to_ship(borrower), multiverse.gather_to_ship(lender)
    assert len(rows["runs"]) == 2
    assert {kind: len(rows[kind]) for kind in rows} == {kind: len(theirs[kind]) for kind in rows}
    assert list(rows["runs"]["final_nll"]) == list(theirs["runs"]["final_nll"])

    other = replace(borrower, campaign=reconfigured(borrower.campaign))
    assert multiverse.gather_to_ship(other)["runs"].empty, "of another configuration"
    texts = rows["runs"][:1].assign(corpus_sha256="others")
    assert not [*multiverse._lent(borrower, texts)]
    losses = lender.shipped.place / READINGS / "losses.parquet"
    losses.write_bytes(losses.read_bytes() + b"more")
    with pytest.raises(InputError, match="not the file that SHA256SUMS lists"):
        multiverse.gather_to_ship(borrower)


def test_what_is_shipped_stands_for_runs_that_are_not_here(
    gathered: Results, tmp_path: Path
) -> None:
    """Published rows count as done, are gathered again with new ones, and need no checkpoint."""
    publish(gathered.campaign, gathered)
    shipped = gathered.shipped.folder / READINGS
    (tmp_path / "published").mkdir()
    shipped.parent.rename(tmp_path / "published" / "tiny")
    fresh = Results(gathered.campaign, tmp_path)
    assert fresh.shipped_reading_runs == {run.name for run in gathered.campaign.reading_runs[:2]}
    assert fresh.own_reading_runs() == list(gathered.campaign.reading_runs[2:])
    again, before = multiverse.gather(fresh), multiverse.gather(gathered)
    for kind, rows in again.items():
        assert len(rows) == len(before[kind]) > 0
    assert list(again["runs"]["final_nll"]) == list(before["runs"]["final_nll"])
    assert replace(fresh, published=False).shipped_reading_runs == frozenset()
