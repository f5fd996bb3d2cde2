"""Small runs for the tests: specifications, a prepared corpus, runs in other processes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from conftest import ROOT
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

from relation import plan, records
from relation.data.corpus import unigram_entropy
from relation.data.tokenizer import END_OF_TEXT
from relation.data.windows import sha256_of
from relation.jobs import Data, Run, Side
from relation.train import run as engine
from relation.train.step import wsd
from relation.variants import VARIANTS, ModelConfig

CPU = torch.device("cpu")
CONTEXT, UPDATE = 16, 128
# The only columns that can differ between two equal runs.
TIMES = ["seconds", "tokens_per_second", "median_tokens_per_second"]
TIMES += ["created", "commit", "processes"]

DATA = Data(
    campaign="tests", corpus="rule", title="A rule with noise", path=None, source={"streams": []},
    fingerprint="of the tests", vocabulary=61, largest_context=32,
)  # fmt: skip


def small_model(variant: str, **changes) -> ModelConfig:
    """A decoder of four layers."""
    backbone = {"layers": 4, "d_model": 16, "heads": 2, "d_ff": 32, "vocab_size": 61}
    return ModelConfig.for_variant(variant, **backbone | changes)


@cache
def tiny() -> plan.Campaign:
    """The tiny campaign, which gives small runs, benchmarks and checks their other options."""
    return plan.load({"campaign": "tiny"})


def small_run(variant: str = "full", **changes) -> Run:
    """A run of 4 updates of 128 tokens and a partial one."""
    own = {"campaign": "tests", "scale": "10M", "variant": variant, "data": DATA}
    own |= {"model": small_model(variant, init_std=0.0566), "validations": 4}
    own |= {"validation_tokens": 100, "flow_sequences": 2, "flow_window": 32, "rank_length": 8}
    return replace(tiny().run("10M-mini/base/full/42"), **own | changes)


def small_side(
    variant: str, backends: dict[str, str], context: int, micro: int = 2, **rest
) -> Side:
    """A side of a benchmark or a check. Kernels need heads of 16 channels or more."""
    layers = max(2, len(VARIANTS[variant].pattern))
    model = small_model(variant, layers=layers, d_model=32, d_ff=48)
    given = {"side": variant, "variant": variant, "model": model, "accumulation": 2} | rest
    return Side(backends=backends, context=context, micro=micro, **given)


def write_corpus(
    folder: Path, vocabulary: int = 61, train: int = 3000, validation: np.ndarray | None = None
) -> Path:
    """Write a prepared corpus. Two earlier tokens determine each token, up to noise.

    Token 0 is end-of-text. validation: ids to use for that split instead.
    """
    # NumPy guarantees a bit generator's raw words. The golden losses depend on them.
    generator = np.random.PCG64(7)
    folder.mkdir(parents=True, exist_ok=True)
    entries = {END_OF_TEXT: 0, **{str(i): i for i in range(1, vocabulary)}}
    Tokenizer(models.BPE(entries, [])).save(str(folder / "tokenizer.json"))
    rows = []
    for split, length in (("train", train), ("validation", 300)):
        noise = generator.random_raw(length) % 5
        tokens = np.zeros(length, "<u2")
        for i in range(2, length):
            tokens[i] = (3 * int(tokens[i - 1]) + int(tokens[i - 2]) + int(noise[i])) % vocabulary
        if split == "validation" and validation is not None:
            tokens = validation.astype("<u2").ravel()
        path = folder / f"{split}.bin"
        tokens.tofile(path)
        key = {"campaign": "tests", "corpus": "rule", "vocabulary": vocabulary, "split": split}
        counts = {"tokens": len(tokens), "documents": 1, "characters": 4 * len(tokens)}
        measured = {"unigram_entropy": unigram_entropy(tokens), "sha256": sha256_of(path)}
        rows.append({**key, **counts, **measured, "fingerprint": "of the tests"})
    records.write(folder / "data.parquet", "data", rows, records.origin("none", "cpu"))
    return folder


def train_in(folder: Path, data: Path, run: Run) -> Path:
    """Train a run, with its state in resume/ of a folder. Return its output, out/ of the folder."""
    engine.train(run, data, folder / "out", folder / "resume")
    return folder / "out"


def row_of(out: Path) -> dict:
    """The record of a run."""
    (row,) = records.read(out / "run.parquet", "runs").to_dict("records")
    return row


def read_run(out: Path) -> tuple[dict[str, torch.Tensor], list[pd.DataFrame]]:
    """A run's weights, and its records without the columns that can differ between runs."""
    kinds = {"runs": "run", "losses": "losses", "probes": "probes"}
    frames = [records.read(out / f"{name}.parquet", kind) for kind, name in kinds.items()]
    return load_file(out / "model.safetensors"), [
        f.drop(columns=TIMES, errors="ignore") for f in frames
    ]


def assert_same_run(out: Path, expected: Path) -> None:
    """Check that weights, losses, probes and record agree to the last bit."""
    (weights, frames), (same, others) = read_run(out), read_run(expected)
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in same)
    for frame, other in zip(frames, others, strict=True):
        pd.testing.assert_frame_equal(frame, other)


def start(folder: Path, data: Path, processes: int = 1, **options) -> subprocess.Popen:
    """Start a small run in a new process, or in several processes with torchrun.

    It writes into out/ and resume/ of `folder`. changes: to the specification; model: to that of
    the model; dies: the update in which SIGKILL kills it.
    """
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable]
    if processes > 1:
        # Some machines cannot resolve their own name.
        command += ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        command += ["--nproc-per-node", str(processes)]
    command += [__file__, str(folder), str(data)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command.append(json.dumps(options))
    return subprocess.Popen(command, env=os.environ | variables, cwd=ROOT, **pipes)


def _train_here(folder: Path, data: Path, options: dict) -> None:
    """Run by the process that `start` starts."""
    begun = []

    def schedule(*arguments) -> float:
        begun.append(arguments)
        if len(begun) == options.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        return wsd(*arguments)

    torch.set_num_threads(1)
    engine.wsd = schedule
    run = small_run(**options.get("changes", {}))
    if "model" in options:
        run = replace(run, model=replace(run.model, **options["model"]))
    train_in(folder, data, run)
    print(f"updates: {len(begun)}")


if __name__ == "__main__":
    _train_here(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
