"""A model that several processes share in shards: the unsharded one's steps, states and files."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from training import (
    CONTEXT,
    PROCESSES,
    UPDATE,
    assert_agrees,
    at_update,
    die,
    kill_self,
    one_line,
    run_spec,
    small_model,
    train_together,
)

from relation.nn import Decoder
from relation.store.layouts import LOG, PROBES, RUN
from relation.store.parquet import read_origin, read_parquet
from relation.train import checkpoint
from relation.train import run as engine
from relation.train.checkpoint import load_model
from relation.train.optimizer import build_optimizer
from relation.train.probes import ValidationProbe
from relation.train.schedule import wsd
from relation.train.shards import is_sharded, shard, whole
from relation.train.step import UpdateStep
from relation.variants import model_config

STATE = "state-*.safetensors"
# 12 updates of four micro-batches of two windows; the partial one has two, the last not full.
SHARED = {"micro": 2, "accumulation": 4, "budget_tokens": 11 * UPDATE + 40}
VARIANTS = ("mha", "full", "hybrid")
EPS, RATE, STEPS, MICRO_BATCHES = 1e-8, 1e-3, 2, 4


def two_steps(variant: str, size: int, rank: int) -> tuple[dict, list[float]]:
    """Parameters and gradient norms after two updates in FP64; rank: of `size` that share it."""
    model = Decoder(model_config(small_model(variant)))
    model.initialise(42)
    model.double()
    if size > 1:
        shard(model, torch.device("cpu"), size, compile=False)
        assert all(is_sharded(p) for p in model.parameters())
    adamw = build_optimizer(model, RATE, (0.9, 0.95), EPS, 0.1, True)
    step = UpdateStep(model, adamw, torch.device("cpu"), "fp32", False, gradient_clip=0.5)
    tokens = torch.randint(
        61, (STEPS, MICRO_BATCHES, 2, CONTEXT + 1), generator=torch.manual_seed(0)
    )
    norms = []
    for update in tokens:
        # A process that has none left takes one without a target, as all must take as many.
        taken = [(part[:, :-1], part[:, 1:]) for part in update[rank::size]]
        blank = torch.full_like(taken[0][1], -100)
        taken += [(taken[0][0], blank)] * (-(-MICRO_BATCHES // size) - len(taken))
        norms.append(step(taken, update[:, :, 1:].numel(), RATE)[1].item())
    return {name: whole(p.detach()) for name, p in model.named_parameters()}, norms


def share_steps(rank: int, size: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for variant in VARIANTS:
        found = two_steps(variant, size, rank)
        if rank == 0:
            torch.save(found, folder / variant)
    dist.destroy_process_group()


def test_two_steps_of_a_sharded_model_are_the_whole_ones(tmp_path: Path) -> None:
    """By three processes, which divide neither heads nor micro-batches; every parameter, in FP64.

    The gradients differ by the order of sums: u times as many terms as the micro-batches' tokens
    have, of size 1 at most after clipping. AdamW divides by sqrt(v) + eps, so that a step differs
    by the rate times that over eps at most.
    """
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    port, size = store.port, 3
    del store
    arguments = ((rank, size, port, tmp_path) for rank in range(size))
    members = [PROCESSES.Process(target=share_steps, args=given) for given in arguments]
    for member in members:
        member.start()
    for member in members:
        member.join(120)
    assert [member.exitcode for member in members] == [0] * size
    u = torch.finfo(torch.float64).eps
    bound = STEPS * RATE * MICRO_BATCHES * 2 * CONTEXT * u / EPS
    assert bound < RATE / 100
    for variant in VARIANTS:
        parameters, norms = torch.load(tmp_path / variant)
        expected, whole_norms = two_steps(variant, 1, 0)
        assert norms == pytest.approx(whole_norms, rel=1e-12)
        assert parameters.keys() == expected.keys()
        for name, values in expected.items():
            found = parameters[name].reshape(values.shape)
            torch.testing.assert_close(found, values, rtol=0, atol=bound, msg=name)


def stops(rank: int, update: int = 8) -> None:
    """The second process is asked to stop, as an update begins."""

    def schedule(before: int, *arguments) -> float:
        if rank == 1 and before == (update - 1) * UPDATE:
            signal.raise_signal(signal.SIGTERM)
        return wsd(before, *arguments)

    engine.wsd = schedule


def test_a_run_goes_on_whole_then_sharded_then_whole(data, tmp_path, monkeypatch) -> None:
    """A state is that of a whole model: one process, then two that share it, then one."""
    spec = run_spec(**SHARED, checkpoint_tokens=4 * UPDATE)
    given = (data, tmp_path / "out", tmp_path / "resume")
    engine.train(spec, data, tmp_path / "alone", tmp_path / "other")
    at_update(monkeypatch, 6, die)
    with pytest.raises(KeyboardInterrupt):
        engine.train(spec, *given)
    (folder,) = given[2].iterdir()
    assert [path.name[:14] for path in folder.glob(STATE)] == ["state-00000004"]

    shared = (replace(spec, shard=True), *given)
    codes, said = train_together(2, shared, tmp_path / "said", stops)
    assert codes == [2, 2], said
    assert "goes on at update 5" in said[0]
    assert one_line(said).endswith("stopped after update 8 of 12; run the same command to go on")
    names = sorted(path.name[:14] for path in folder.glob(STATE))
    assert names == ["state-00000004", "state-00000008"]

    at_update(monkeypatch, 0, die)
    engine.train(spec, *given)
    assert_agrees(tmp_path / "out", tmp_path / "alone")
    assert read_origin(tmp_path / "out/record.parquet")["processes"] == [1, 2, 1]


class Saves:
    """What a process saves while it trains."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, rank: int) -> None:
        write = checkpoint.write_state

        def noted(folder: Path, taken: checkpoint.Snapshot) -> None:
            write(folder, taken)
            (self.folder / f"{rank}-{taken.update}").touch()

        checkpoint.write_state = noted


def test_a_sharded_run_is_looked_at_saved_and_ended_by_the_first_process(data, tmp_path) -> None:
    spec = run_spec(**SHARED, shard=True, checkpoint_tokens=4 * UPDATE)
    probe = (ValidationProbe(2, 100, data, spec),)
    alone, saves = tmp_path / "alone", tmp_path / "saves"
    saves.mkdir()
    engine.train(spec, data, alone, tmp_path / "other", None, probe)
    run = (spec, data, tmp_path / "out", tmp_path / "resume", None, probe)
    codes, said = train_together(2, run, tmp_path / "said", Saves(saves))
    assert codes == [0, 0], said
    assert_agrees(tmp_path / "out", alone)
    assert read_origin(tmp_path / "out/record.parquet")["sharded"] is True
    looks = [read_parquet(p / "probes.parquet", PROBES).to_pylist() for p in (run[2], alone)]
    assert [look["update"] for look in looks[0]] == [look["update"] for look in looks[1]]
    values = [[look["value"] for look in found] for found in looks]
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    model = load_model(tmp_path / "out/model.safetensors", torch.device("cpu"))
    expected = load_model(alone / "model.safetensors", torch.device("cpu"))
    for (name, found), values in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, values, rtol=1e-4, atol=1e-5, msg=name)
    assert sorted(path.name for path in saves.iterdir()) == ["0-12", "0-4", "0-8"]


def killed(rank: int) -> None:
    """The second process is killed as its third update begins."""

    def schedule(before: int, *arguments) -> float:
        if rank == 1 and before == 2 * UPDATE:
            kill_self()
        return wsd(before, *arguments)

    engine.wsd = schedule


def test_a_lost_part_of_the_model_ends_the_run_with_one_line(data, tmp_path) -> None:
    run = (run_spec(**SHARED, shard=True), data, tmp_path / "out", tmp_path / "resume")
    codes, said = train_together(2, run, tmp_path / "said", killed, seconds=60)
    assert codes == [2, -signal.SIGKILL]
    assert "another process of this run ended without a word" in one_line(said)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_two_gpus_share_a_model(data: Path, tmp_path: Path, compiled: bool) -> None:
    """The run of one GPU, with less memory each."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    backends = {"mha": "reference", "full": "reference", "linear": "recurrent"}
    spec = run_spec(**SHARED, device="cuda", compile=compiled, backends=backends)
    run = (replace(spec, shard=True), data, tmp_path / "two", tmp_path / "resume")
    codes, said = train_together(2, run, tmp_path / "said", seconds=300)
    assert codes == [0, 0], said
    engine.train(spec, data, tmp_path / "one", tmp_path / "resume")
    records = [tmp_path / name / "record.parquet" for name in ("two", "one")]
    two, one = (read_parquet(path, RUN).to_pylist()[0] for path in records)
    assert two["order_hash"] == one["order_hash"] and two["init_hash"] == one["init_hash"]
    logs = [read_parquet(path.with_name("log.parquet"), LOG).to_pydict() for path in records]
    assert logs[0]["loss"] == pytest.approx(logs[1]["loss"], rel=1e-5)
