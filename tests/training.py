"""Small training runs for the tests: specifications, a corpus, and runs in processes of their own.

The processes come from a fork server that has imported PyTorch, and its FSDP, once.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import campaign
from safetensors.torch import load_file
from torch.distributed import TCPStore

from relation.data.prepare import unigram_entropy
from relation.errors import RelationError
from relation.spec import RunSpec
from relation.store.files import sha256_of
from relation.store.layouts import DATA, LOG, RUN
from relation.store.parquet import read_origin, read_parquet, write_parquet
from relation.store.stamp import UNKNOWN, origin
from relation.train import checkpoint
from relation.train import run as engine
from relation.train.schedule import wsd
from relation.variants import ModelConfig

TIMES = {"seconds", "tokens_per_second"}  # all that may differ between two runs of one kind
CONTEXT, UPDATE = 16, 128
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["relation.train.run", "pytest", "torch.distributed.fsdp", "torch.distributed.tensor"]
)
# Of what imports PyTorch only afterwards; the command sets it for the processes it starts.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def run_spec(variant: str = "full", **changes) -> RunSpec:
    """A run of the tiny campaign: 4 updates of 128 tokens and a partial one."""
    return replace(campaign().run("10M", variant, 42), **changes)


def small_model(variant: str, **changes) -> dict:
    """A decoder of four layers as a RunSpec holds it."""
    backbone = {"layers": 4, "d_model": 16, "heads": 2, "d_ff": 32, "vocab_size": 61} | changes
    return asdict(ModelConfig.for_variant(variant, **backbone))


def write_corpus(folder: Path, vocabulary: int = 61, train: int = 3000) -> Path:
    """A prepared corpus of which each token follows from two before it, by a rule with noise."""
    # A bit generator's raw words, whose stream NumPy guarantees: the golden losses rest on them.
    generator = np.random.PCG64(7)
    folder.mkdir(parents=True)
    rows = []
    for split, length in (("train", train), ("validation", 300)):
        noise = generator.random_raw(length) % 5
        tokens = np.zeros(length, "<u2")
        for i in range(2, length):
            tokens[i] = (3 * int(tokens[i - 1]) + int(tokens[i - 2]) + int(noise[i])) % vocabulary
        path = folder / f"{split}.bin"
        tokens.tofile(path)
        counts = {"tokens": length, "documents": 1, "characters": length}
        measured = {"unigram_entropy": unigram_entropy(tokens), "sha256": sha256_of(path)}
        rows.append({"split": split, **counts, **measured})
    written = origin("tests", "none", "data", "cpu", corpus_sha256="of the tests")
    write_parquet(folder / "data.parquet", DATA, rows, written)
    return folder


def columns(path: Path, layout) -> dict[str, list]:
    """A record's columns, without those that measure time."""
    table = read_parquet(path, layout)
    return {n: v for n, v in table.to_pydict().items() if n not in TIMES}


def assert_same_run(output: Path, expected: Path) -> None:
    """Weights, log and record agree to the last bit."""
    weights, same = (load_file(p / "model.safetensors") for p in (output, expected))
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in same)
    for file, layout in (("log.parquet", LOG), ("record.parquet", RUN)):
        assert columns(output / file, layout) == columns(expected / file, layout)


def assert_agrees(output: Path, alone: Path) -> None:
    """The same run up to the order of FP32's sums, and the same one by its hashes."""
    logs = [read_parquet(path / "log.parquet", LOG).to_pydict() for path in (output, alone)]
    for name in ("update", "tokens", "update_tokens", "learning_rate"):
        assert logs[0][name] == logs[1][name]
    for name in ("loss", "gradient_norm"):
        assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-5)
    records = [columns(path / "record.parquet", RUN) for path in (output, alone)]
    nll, expected = (record.pop("final_nll")[0] for record in records)
    assert nll == pytest.approx(expected, rel=1e-5)
    assert records[0] == records[1]
    origins = [read_origin(path / "record.parquet") for path in (output, alone)]
    assert origins[0]["config_hash"] == origins[1]["config_hash"]


def one_line(said: list[str]) -> str:
    """The one error that several processes printed."""
    errors = [line for text in said for line in text.splitlines() if "rror" in line]
    assert len(errors) == 1, said
    assert "Traceback" not in "".join(said)
    return errors[0]


def resume_key(spec: RunSpec, data: Path) -> str:
    """The name of a run's resume folder."""
    hashes = {split: row["sha256"] for split, row in engine.data_rows(data).items()}
    return engine.resume_key(spec, hashes, UNKNOWN.code_hash)


def at_update(monkeypatch, update: int, action: Callable[[], object]) -> list[int]:
    """Do something as an update of the next run begins; the list gathers the updates begun."""
    begun: list[int] = []

    def schedule(before: int, *arguments) -> float:
        begun.append(before // UPDATE + 1)
        if begun[-1] == update:
            action()
        return wsd(before, *arguments)

    monkeypatch.setattr(engine, "wsd", schedule)
    return begun


def die() -> None:
    """End the process, as far as the engine can tell."""
    raise KeyboardInterrupt


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_a_save(number: int, half_written: bool) -> None:
    """Let this process be killed in its `number`th save: within the file, or before it is named."""
    saves = []
    write, rename = checkpoint.save_file, os.replace

    def save_file(tensors: dict, path: Path, **options) -> None:
        saves.append(path)
        write(tensors, path, **options)
        if half_written and len(saves) == number:
            os.truncate(path, path.stat().st_size // 2)
            kill_self()

    def replace_file(source: Path, target: Path) -> None:
        if len(saves) == number:
            kill_self()
        rename(source, target)

    checkpoint.save_file, os.replace = save_file, replace_file


def train_alone(run: tuple, begun, save: int = 0, half_written: bool = False) -> None:
    """Train in a process of its own; `begun` is set as the first update begins."""
    torch.set_num_threads(1)

    def schedule(*arguments) -> float:
        begun.set()
        return wsd(*arguments)

    engine.wsd = schedule
    if save:
        killed_in_a_save(save, half_written)
    engine.train(*run)


def _member(
    rank: int, size: int, nodes: int, port: int, prepare: Callable | None, run: tuple, said
) -> None:
    node, place = divmod(rank, size // nodes)
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size // nodes),
        "LOCAL_RANK": str(place),
        "GROUP_RANK": str(node),
    }
    torch.set_num_threads(1)
    with open(said, "w", encoding="utf-8", buffering=1) as file:
        os.dup2(file.fileno(), 2)
        sys.stderr = file
        if prepare is not None:
            prepare(rank)
        try:
            engine.train(*run)
        except RelationError as error:
            print(f"error: {error}", file=file)
            sys.exit(2)


def train_together(
    size: int,
    run: tuple,
    folder: Path,
    prepare: Callable | None = None,
    seconds: float = 60,
    nodes: int = 1,
) -> tuple[list[int], list[str]]:
    """Train in `size` processes as torchrun starts them; exit codes and what each printed.

    prepare(rank) is called in each before it trains. nodes: on how many they take themselves to be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = TCPStore("127.0.0.1", 0, size + 1, is_master=True, wait_for_workers=False)
    members, said = [], [folder / f"said-{rank}" for rank in range(size)]
    for rank in range(size):
        arguments = (rank, size, nodes, store.port, prepare, run, said[rank])
        members.append(PROCESSES.Process(target=_member, args=arguments))
        members[-1].start()
    for member in members:
        member.join(seconds)
    hung = [member for member in members if member.is_alive()]
    for member in hung:
        member.kill()
        member.join()
    assert not hung, [path.read_text(encoding="utf-8") for path in said]
    return [m.exitcode for m in members], [path.read_text(encoding="utf-8") for path in said]
