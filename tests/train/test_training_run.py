"""A run from its specification to its records: exact, repeatable, resumed, refused in a line."""

import errno
import json
import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refusal
from training import (
    CONTEXT,
    CPU,
    UPDATE,
    assert_same_run,
    read_run,
    row_of,
    small_model,
    small_run,
    start,
    tiny,
    train_in,
    write_corpus,
)

from relation import records
from relation.data.masks import document_mask
from relation.data.windows import data_rows, open_tokens
from relation.errors import RunError
from relation.flow.diagnose import diagnose
from relation.flow.metrics import read_layers
from relation.train import checkpoint
from relation.train import run as engine
from relation.train.checkpoint import load_model
from relation.train.distributed import check_processes
from relation.train.step import nll_of, wsd

BUDGET, UPDATES = 600, 5


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a Full Relation run without interruptions."""
    out = train_in(tmp_path_factory.mktemp("trained"), data, small_run())
    assert not list((out.parent / "resume").glob("*.safetensors"))
    return out


@pytest.fixture(scope="module", params=[None, "documents"])
def masked(request, trained: Path, data: Path, tmp_path_factory) -> tuple:
    """The output of a run and its mask, without and with separate documents."""
    run, folder = small_run(document_mask=request.param), tmp_path_factory.mktemp("masked")
    out = train_in(folder, data, run) if request.param else trained
    return out, document_mask(request.param, data)


class DiedError(Exception):
    """Stands for the death of the process."""


def begun_updates(monkeypatch, dies: int | None = None) -> list[int]:
    """Return a list that collects the updates that runs begin. A run dies in update `dies`."""
    begun: list[int] = []

    def schedule(before: int, *arguments) -> float:
        begun.append(before // UPDATE + 1)
        if begun[-1] == dies:
            raise DiedError
        return wsd(before, *arguments)

    monkeypatch.setattr(engine, "wsd", schedule)
    return begun


def test_the_record_says_what_was_trained_on_what(trained: Path, data: Path) -> None:
    losses = records.read(trained / "losses.parquet", "losses")
    assert losses["update"].tolist() == [1, 2, 3, 4, 5]
    assert losses["tokens"].tolist() == [128, 256, 384, 512, BUDGET]
    assert losses["loss"][0] == pytest.approx(np.log(61), abs=0.2)
    assert losses["loss"][4] < losses["loss"][0] and losses["gradient_norm"].min() > 0
    row, known = row_of(trained), data_rows(data)
    assert json.loads(row["specification"]) == json.loads(json.dumps(small_run().specification()))
    assert (row["trained_tokens"], row["updates"], row["processes"]) == (BUDGET, UPDATES, 1)
    assert (row["layout"], row["corpus"], row["backend"]) == ("FFFF", "A rule with noise", "tiled")
    assert row["validation_tokens"] == known["validation"]["tokens"] - 1
    assert row["validation_characters"] == known["validation"]["characters"]
    assert row["corpus_fingerprint"] == known["train"]["fingerprint"]
    assert row["unigram_entropy"] == known["validation"]["unigram_entropy"]
    assert np.isnan(row["peak_memory_gib"])  # not measured on a CPU
    assert row["epochs"] == 38 / ((known["train"]["tokens"] - 1) // CONTEXT)
    assert row["tokens_per_second"] == pytest.approx(BUDGET / row["seconds"])


def test_the_final_nll_is_the_checkpoints(data, masked) -> None:
    """Compare with the saved model in float64, one window at a time."""
    out, mask = masked
    model = load_model(out / "model.safetensors", CPU).double()
    tokens = torch.from_numpy(np.fromfile(data / "validation.bin", "<u2").astype(np.int64))
    total = 0.0
    with torch.no_grad():
        for first in range(0, len(tokens) - 1, CONTEXT):
            chunk = tokens[first : first + CONTEXT + 1]
            inputs = chunk[None, :-1]
            log_p = model(inputs, mask(inputs))[0].log_softmax(-1)
            total -= log_p.gather(1, chunk[1:, None]).sum().item()
    assert row_of(out)["final_nll"] == pytest.approx(total / (len(tokens) - 1), rel=1e-6)
    assert (len(tokens) - 1) % CONTEXT, "the split has no ragged tail to test"


def test_a_run_in_bf16_is_evaluated_in_bf16(data, tmp_path) -> None:
    out = train_in(tmp_path, data, small_run(precision="bf16"))
    model = load_model(out / "model.safetensors", CPU)
    given = model, open_tokens(data, "validation"), CONTEXT, 4, CPU
    bf16, fp32 = (nll_of(*given, each, document_mask(None, data)) for each in ("bf16", "fp32"))
    nll = row_of(out)["final_nll"]
    assert nll == pytest.approx(bf16, rel=1e-6) and nll != pytest.approx(fp32, rel=1e-6)


OPTIONS = [
    {"init_key": "full"}, {"document_mask": "documents"}, {"precision": "bf16"},
    {"learning_rate": 1e-3}, {"warmup_tokens": 300}, {"plateau_fraction": 0.5},
    {"betas": (0.8, 0.95)}, {"betas": (0.9, 0.9)}, {"adam_eps": 1e-3}, {"gradient_clip": 0.1},
    {"weight_decay": 0.2}, {"decay_embedding": False}, {"decay_vectors": True},
]  # fmt: skip


@pytest.mark.parametrize("changes", OPTIONS, ids=lambda changes: next(iter(changes)))
def test_an_option_that_changes_the_hash_changes_the_weights(trained, data, tmp_path, changes):
    """Otherwise a variation of a campaign could train the base run again under another name."""
    run = small_run(**changes)
    assert run.hash != small_run().hash
    weights, others = (read_run(out)[0] for out in (train_in(tmp_path, data, run), trained))
    assert not all(torch.equal(weights[name], others[name]) for name in others)


def test_the_seconds_of_a_run_are_those_of_its_updates(data, tmp_path, monkeypatch) -> None:
    """Update k takes 2^k seconds. A probe or a save takes 1000, which count for no update."""
    now = [0.0]

    def take(owner, name: str, seconds) -> None:
        call = getattr(owner, name)

        def timed(*arguments, **options):
            now[0] += seconds(*arguments)
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, timed)

    take(engine, "wsd", lambda before, *_: 2 ** (before // UPDATE))
    take(engine, "nll_of", lambda *_: 1000)
    take(checkpoint, "snapshot", lambda *_: 1000)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    row = row_of(train_in(tmp_path, data, small_run(checkpoint_seconds=1e-9)))
    assert (row["seconds"], row["tokens_per_second"]) == (31, BUDGET / 31)
    assert row["median_tokens_per_second"] == UPDATE / 4


def test_probes_are_taken_at_the_start_and_after_each_part(data, masked) -> None:
    """The last probe agrees with the saved model: lambda, flow and validation NLL."""
    out, mask = masked
    probes = records.read(out / "probes.parquet", "probes")
    nll = probes[probes["metric"] == "validation_nll"]
    assert nll["tokens"].tolist() == [0, 256, 384, 512, 600]
    flow = probes[probes["metric"] == "self_flow"]
    assert sorted(set(flow["tokens"])) == [0, 384, 600]
    model, tokens = load_model(out / "model.safetensors", CPU), open_tokens(data, "validation")
    given = (tokens[:101], CONTEXT, 4, CPU, "fp32", mask)
    assert nll["value"].iloc[-1] == pytest.approx(nll_of(model, *given), rel=1e-6)
    last = probes[probes["tokens"] == 600]
    last = last.set_index(["metric", "layer", "part"])["value"].sort_index()
    sequence = torch.from_numpy(tokens[:16].astype(np.int64))[None]
    for layer in read_layers(model, sequence, 16, 8, mask(sequence)):
        mixer = model.blocks[layer.index].mixer
        assert last["lambda", layer.index].item() == pytest.approx(mixer.lam.item())
        assert last["theta", layer.index, 0] == pytest.approx(mixer.theta.item())
        for reading in layer.readings:
            for name, values in reading.values.items():
                expected = pytest.approx(values.mean().item(), rel=1e-6)
                assert last[name, layer.index].item() == expected


def test_a_pair_starts_alike_and_reads_alike(trained: Path, data: Path, tmp_path: Path) -> None:
    texts = write_corpus(tmp_path / "data", vocabulary=59)
    full = row_of(trained)
    mha = row_of(train_in(tmp_path / "mha", data, small_run("mha")))
    other = row_of(train_in(tmp_path / "seed", data, small_run(seed=43)))
    text = row_of(train_in(tmp_path / "texts", texts, small_run()))
    for name in ("order_hash", "init_hash"):
        assert full[name] == mha[name] != other[name]
    assert text["order_hash"] != full["order_hash"] and text["init_hash"] == full["init_hash"]
    assert full["parameters"] - mha["parameters"] == 4 * (1 + 1)  # lambda and one angle per layer


def test_a_run_killed_by_sigkill_goes_on_to_the_same_bits(trained, data, tmp_path) -> None:
    """It saves after each update and is killed in the fourth."""
    changes = {"checkpoint_seconds": 1e-9}
    killed = start(tmp_path, data, changes=changes, dies=4)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "out").exists()
    again = start(tmp_path, data, changes=changes)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0 and "updates: 2" in output, output
    assert_same_run(tmp_path / "out", trained)


@pytest.mark.gpu
def test_a_run_on_a_gpu_killed_by_sigkill_goes_on_to_the_same_bits(data, tmp_path) -> None:
    """The kernels, compiled, in BF16 and with CUDA graphs; in heads that are wide enough."""
    changes = {"device": "cuda", "precision": "bf16", "compile": True, "deterministic": True}
    changes |= {"backends": {"full": "flash"}, "checkpoint_seconds": 1e-9}
    options = {"changes": changes, "model": {"d_model": 32}}
    for folder, dies in (("whole", {}), ("resumed", {"dies": 4}), ("resumed", {})):
        (tmp_path / folder).mkdir(exist_ok=True)
        process = start(tmp_path / folder, data, **options, **dies)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == (-signal.SIGKILL if dies else 0), output
    assert "continues at update" in output
    assert_same_run(tmp_path / "resumed/out", tmp_path / "whole/out")


def test_a_run_that_another_process_trains_is_refused(data, tmp_path) -> None:
    run = small_run()
    with records.held(tmp_path / f"resume/{run.hash}.lock", run.name):
        output = refusal(lambda: train_in(tmp_path, data, run), RunError)
    assert f"{run.name} is already running in another process" in output


@pytest.fixture
def state(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The resume state of update 3, from a run that died in update 4. Its code is one file."""
    code = tmp_path / "project" / "relation" / "step.py"
    code.parent.mkdir(parents=True)
    code.write_text("before")
    monkeypatch.setattr(records, "PROJECT", tmp_path / "project")
    begun_updates(monkeypatch, dies=4)
    with pytest.raises(DiedError):
        train_in(tmp_path, data, small_run(checkpoint_seconds=1e-9))
    (state,) = (tmp_path / "resume").glob("*.safetensors")
    return state


@pytest.mark.parametrize(
    "damage", [lambda file: file[:-100], lambda file: b"", lambda file: file[:-100] + b"." * 100]
)
def test_a_damaged_state_is_told_and_the_run_starts_anew(
    trained, data, tmp_path, monkeypatch, capsys, state, damage
) -> None:
    state.write_bytes(damage(state.read_bytes()))
    begun = begun_updates(monkeypatch)
    out = train_in(tmp_path, data, small_run())
    assert begun[0] == 1 and f"warning: {state} is not used" in capsys.readouterr().err
    assert_same_run(out, trained)


@pytest.mark.parametrize(
    ("changed", "begins"),
    [("README.md", 4), ("relation/step.py", 1), ("kernels/op.py", 1), ("relation/new.csv", 1),
     ("torch", 1), ("data", 1), ("backend", 1), ("deterministic", 1), ("specification", 1),
     ("probes", 1)],
)  # fmt: skip
def test_a_state_is_used_where_nothing_that_decides_changed(
    trained, data, tmp_path, monkeypatch, capsys, state, changed, begins
) -> None:
    base, project = small_run(), tmp_path / "project"
    changes = {
        "backend": {"backends": base.backends | {"full": "reference"}},
        "deterministic": {"deterministic": not base.deterministic},
        "specification": {"weight_decay": 0.2},
        "probes": {"validation_tokens": base.validation_tokens + 1},
    }
    run = replace(base, **changes.get(changed, {}))
    if changed == "data":
        data = write_corpus(tmp_path / "other", train=2000)
    elif changed == "torch":
        monkeypatch.setattr(torch, "__version__", f"{torch.__version__}.1")
    elif changed not in changes:
        (project / changed).parent.mkdir(exist_ok=True)
        (project / changed).write_text("after")
    begun = begun_updates(monkeypatch)
    out = train_in(tmp_path, data, run)
    assert begun[0] == begins
    is_refused = "is not used (other code, data, execution" in capsys.readouterr().err
    assert is_refused == (begins == 1 and changed != "specification")
    if (project / changed).exists():
        assert_same_run(out, trained)


def test_a_full_disk_is_one_line_and_costs_no_more_than_a_save(
    trained, data, tmp_path, monkeypatch
) -> None:
    """The disk is full in the third save. The run resumes from the second."""
    write, saves = checkpoint.save_file, []

    def save_file(tensors: dict, path: Path, **rest) -> None:
        saves.append(path)
        write(tensors, path, **rest)
        if len(saves) == 3:
            os.truncate(path, 100)
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    run = small_run(checkpoint_seconds=1e-9)
    assert "No space left" in refusal(lambda: train_in(tmp_path, data, run), RunError)
    begun = begun_updates(monkeypatch)
    assert_same_run(train_in(tmp_path, data, run), trained)
    assert begun == [3, 4, 5]


def test_a_run_that_diverges_is_stopped_and_saves_no_broken_state(data, tmp_path) -> None:
    """Update 1 moves the weights out of FP32's range. The loss shows it in update 2."""
    run = small_run(learning_rate=1e38, checkpoint_seconds=1e-9)
    message = refusal(lambda: train_in(tmp_path, data, run), RunError)
    assert "at update 2" in message and "learning_rate" in message
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "resume").rglob("*.safetensors"))


def test_a_flow_that_diverges_before_the_loss_is_a_divergence(data, tmp_path) -> None:
    run = small_run(learning_rate=1e5, divergence="record")
    assert math.isnan(row_of(train_in(tmp_path, data, run))["final_nll"])
    # A split that is too short for the diagnostics is not a divergence.
    short = replace(run, flow_window=10_000)
    assert "diagnostics read" in refusal(lambda: train_in(tmp_path, data, short))
    failing = replace(run, divergence="fail")
    message = refusal(lambda: train_in(tmp_path, data, failing), RunError)
    assert "the flow of layer 0 is not finite" in message and "learning_rate" in message


def test_a_divergence_is_recorded_where_the_campaign_counts_them(data, tmp_path) -> None:
    run = small_run(learning_rate=1e38, divergence="record", probes=1, validations=1)
    out = train_in(tmp_path, data, run)
    row = row_of(out)
    assert math.isnan(row["final_nll"])
    assert (row["updates"], row["trained_tokens"], row["budget_tokens"]) == (1, 128, BUDGET)
    weights, (_, losses, _) = read_run(out)
    assert len(losses) == 1 and not all(tensor.isfinite().all() for tensor in weights.values())
    message = refusal(lambda: diagnose(run, data, out / "model.safetensors", out), RunError)
    assert "the model diverged" in message
    none = replace(run, model=small_model("full", init_std=1e30))  # diverges before an update
    row = row_of(train_in(tmp_path / "none", data, none))
    assert row["updates"] == row["epochs"] == 0 and math.isnan(row["tokens_per_second"])
    # Such a campaign plans no measurement of its checkpoints.
    assert tiny().measured(replace(run, divergence="fail")) and not tiny().measured(run)


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (torch.zeros_like, "blocks.1.mixer.lam is zero"),
        # Its square overflows, so clipping multiplies all gradients by 0: nothing would learn.
        (lambda gradient: gradient + 1e30, "gradient norm inf at update 1,"),
    ],
)
def test_a_lost_or_huge_gradient_is_told(data, tmp_path, monkeypatch, gradient, message) -> None:
    """For example, if a compiler drops a gradient."""
    build = engine.build_optimizer

    def lost(model, *arguments):
        model.blocks[1].mixer.lam.register_hook(gradient)
        return build(model, *arguments)

    monkeypatch.setattr(engine, "build_optimizer", lost)
    assert message in refusal(lambda: train_in(tmp_path, data, small_run()), RunError)


def test_weights_that_only_the_last_update_breaks_are_no_result(data, tmp_path, monkeypatch):
    """A Linear model has no flow that would show it in the last probe."""
    last = lambda before, *_: math.inf if before == 4 * UPDATE else 1.0  # noqa: E731
    monkeypatch.setattr(engine, "wsd", last)
    message = refusal(lambda: train_in(tmp_path, data, small_run("linear")), RunError)
    assert "is not finite after the last update" in message
    assert not (tmp_path / "out").exists()


def test_two_processes_train_the_run_of_one_and_go_on_where_they_were_killed(
    data, tmp_path
) -> None:
    """Equal up to the order of FP32's sums, with the same data order and initial weights.

    The last update has one micro-batch, so the second process has none.
    """
    changes = {"checkpoint_seconds": 1e-9, "budget_tokens": 560}
    trained = train_in(tmp_path / "one", data, small_run(budget_tokens=560))
    killed = start(tmp_path, data, processes=2, changes=changes, dies=4)
    killed.communicate(timeout=180)
    assert killed.returncode != 0 and not (tmp_path / "out").exists()
    again = start(tmp_path, data, processes=2, changes=changes)
    output, _ = again.communicate(timeout=180)
    # When the other process died, the first may or may not have started update 4.
    assert again.returncode == 0 and {"updates: 2", "updates: 3"} & set(output.splitlines()), output
    (_, (run, losses, _)), (_, (one, expected, _)) = map(read_run, (tmp_path / "out", trained))
    for name in ("loss", "gradient_norm"):
        assert losses[name].tolist() == pytest.approx(expected[name].tolist(), rel=1e-5)
    for name in ("order_hash", "init_hash", "hash", "trained_tokens", "epochs"):
        assert run[name][0] == one[name][0]
    assert run["final_nll"][0] == pytest.approx(one["final_nll"][0], rel=1e-5)


def test_a_divergence_of_several_processes_ends_all_with_its_remedy(data, tmp_path) -> None:
    changes = {"learning_rate": 1e38, "divergence": "record"}
    diverged = start(tmp_path, data, processes=2, changes=changes)
    output, _ = diverged.communicate(timeout=180)
    assert diverged.returncode != 0 and "train with one process" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "count", "message"),
    [
        ({"accumulation": 1}, 2, "1 micro-batches, which 2 processes cannot share"),
        ({}, 0, "which 0 processes cannot share"),
    ],
)
def test_what_processes_cannot_do_is_refused(changes, count, message) -> None:
    assert message in refusal(lambda: check_processes(small_run(**changes), count))
