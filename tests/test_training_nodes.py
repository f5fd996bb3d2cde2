"""One run on several nodes: torchrun's agents meet, a lost node ends all, and all go on."""

import os
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from conftest import ROOT
from training import (
    PROCESSES,
    UPDATE,
    assert_agrees,
    one_line,
    run_spec,
    train_together,
    write_corpus,
)

from relation.cli import main
from relation.errors import InputError
from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from relation.store.layouts import RUN
from relation.store.parquet import read_origin, read_parquet
from relation.train import run as engine
from relation.train.launch import torchrun_options

CAMPAIGN = f"""
  nodes:
    base: tiny
    seeds: [42]
    scales:
      10M: {{budget_tokens: {80 * UPDATE}}}
"""
TRAIN = ["train", "10M/full/42", "--campaign", "nodes", "--threads", "1", "--processes", "2"]


def agent(folder: Path, command: list[str], said: Path) -> None:
    """What a node runs: the command itself, in a process that has imported PyTorch."""
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(ROOT)
    with said.open("w", encoding="utf-8", buffering=1) as file:
        os.dup2(file.fileno(), 2)
        sys.stderr = file
        sys.argv = ["relation", *command]
        sys.exit(main(command))


def start(folder: Path) -> tuple[list, list[Path]]:
    """Two nodes that meet on this machine, and the files of what they say."""
    command = [*TRAIN, "--nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}"]
    said = [folder / f"said-{node}" for node in range(2)]
    nodes = [PROCESSES.Process(target=agent, args=(folder, command, path)) for path in said]
    for node in nodes:
        node.start()
    return nodes, said


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def kill(node) -> None:
    """A machine that is gone: the agent, and what it started."""
    own = psutil.Process(node.pid)
    for process in (*own.children(), own):
        process.kill()


def test_a_run_on_two_nodes_goes_on_after_one_was_lost(tmp_path: Path) -> None:
    """The first node is lost, where the run is led and the nodes met."""
    text = (ROOT / "config.yaml").read_text(encoding="utf-8")
    often = text.replace("checkpoint_tokens: 100000000", f"checkpoint_tokens: {20 * UPDATE}")
    (tmp_path / "config.yaml").write_text(often + CAMPAIGN, encoding="utf-8")
    results = tmp_path / "results/nodes"
    data = write_corpus(results / "data/sample-300")
    nodes, said = start(tmp_path)
    deadline = time.monotonic() + 60
    while not list(results.glob("resume/*/state-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    kill(nodes[0])
    for node in nodes:
        node.join(60)
    assert nodes[1].exitcode == 2
    assert "another process of this run ended without a word" in one_line([said[1].read_text()])

    nodes, said = start(tmp_path)
    for node in nodes:
        node.join(60)
    assert [node.exitcode for node in nodes] == [0, 0], [path.read_text() for path in said]
    assert "10M/full/42 goes on at update" in said[0].read_text() + said[1].read_text()
    output = results / "runs/10M/full/42"
    assert read_origin(output / "record.parquet")["processes"] == [2]
    spec = resolve(load_config(tmp_path / "config.yaml"), campaign="nodes").run("10M", "full", 42)
    engine.train(spec, data, tmp_path / "alone", tmp_path / "resume")
    assert_agrees(output, tmp_path / "alone")


def without_the_shared_folder(rank: int) -> None:
    """The second node writes to a disk of its own."""
    if rank == 1:
        named = engine.resume_key
        engine.resume_key = lambda *given: f"elsewhere-{named(*given)}"


def without_the_corpus(rank: int) -> None:
    """The second node has nobody's texts."""
    if rank == 1:
        engine.data_rows = lambda folder: engine.open_prepared(folder / "lost", "train", "")


@pytest.mark.parametrize(
    "fault, expected",
    [
        (without_the_shared_folder, "is not the folder that the first node writes to; put"),
        (without_the_corpus, "lost"),
    ],
)
def test_what_a_node_lacks_ends_all_with_one_line_that_names_it(
    data, tmp_path, fault, expected
) -> None:
    run = (run_spec(), data, tmp_path / "out", tmp_path / "resume")
    codes, said = train_together(2, run, tmp_path / "said", fault, seconds=30, nodes=2)
    line = one_line(said)
    assert codes == [2, 2] and expected in line and f"(on node {os.uname().nodename})" in line


@pytest.mark.parametrize(
    "given, slurm, options",
    [
        ((4,), {}, "--standalone --local-addr 127.0.0.1 --nproc-per-node 4"),
        (
            (4, 2, "127.0.0.1:29400", "10M/full/42"),
            {},
            "--nnodes 2 --rdzv-backend c10d --rdzv-id 10M-full-42 --rdzv-endpoint 127.0.0.1:29400 "
            "--local-addr 127.0.0.1 --nproc-per-node 2",
        ),
        (
            (4, 2, None, "10M/full/42"),
            {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_NODEID": "1", "SLURM_JOB_ID": "70042"},
            "--nnodes 2 --rdzv-backend c10d --rdzv-id 10M-full-42 --rdzv-endpoint 127.0.0.1:20042 "
            "--rdzv-conf is_host=False --local-addr 127.0.0.1 --nproc-per-node 2",
        ),
    ],
    ids=["one node", "two nodes", "slurm"],
)
def test_how_torchrun_is_asked(given: tuple, slurm: dict, options: str) -> None:
    assert torchrun_options(*given, environment=slurm) == options.split()


@pytest.mark.parametrize(
    "given, said",
    [
        ((3, 2, "node1:29400"), "--processes 3 do not divide among --nodes 2"),
        ((2, 2), "--nodes needs --rendezvous HOST:PORT"),
        ((2, 1, "node1:29400"), "for several nodes; give --nodes too"),
        ((2, 2, "node1"), "give HOST:PORT, as node1:29400"),
        ((2, 2, "nowhere.invalid:29400"), "nowhere.invalid cannot be reached"),
    ],
)
def test_nodes_that_cannot_meet_are_told(given: tuple, said: str) -> None:
    with pytest.raises(InputError, match=said):
        torchrun_options(*given, environment={})


@pytest.mark.gpu
def test_each_node_claims_its_own_gpus(data: Path, tmp_path: Path) -> None:
    """Two nodes of one GPU each, both on this machine."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    spec = run_spec(
        device="cuda", backends={"mha": "reference", "full": "reference", "linear": "recurrent"}
    )
    run = (spec, data, tmp_path / "out", tmp_path / "resume")
    codes, said = train_together(2, run, tmp_path / "said", seconds=300, nodes=2)
    assert codes == [0, 0], said
    alone = tmp_path / "alone"
    engine.train(spec, data, alone, tmp_path / "resume")
    both, one = (read_parquet(p / "record.parquet", RUN).to_pylist()[0] for p in (run[2], alone))
    assert both["order_hash"] == one["order_hash"]
