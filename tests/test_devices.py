"""Claiming GPUs: each by one process, several at once or none, as many jobs as there are GPUs."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, snakemake

from relation.errors import InputError
from relation.machine import devices
from relation.machine.devices import claim, claim_gpus, gpu_count, to_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Two GPUs, as far as a claim can tell; the list gathers which were made current."""
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    uuids = [SimpleNamespace(uuid=f"GPU-{index}") for index in range(2)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", uuids.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(devices.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(devices, "_SECONDS_BETWEEN_LOOKS", 0.01)
    return current


def test_each_claim_has_its_own_gpu(two_gpus: list[int]) -> None:
    with claim("cuda") as first, claim("cuda") as second:
        assert (first, second) == (torch.device("cuda", 0), torch.device("cuda", 1))
    with claim("cuda") as again:
        assert again == first
    assert two_gpus == [0, 1, 0]


def test_a_claim_waits_for_whichever_gpu_frees_first(two_gpus, capsys) -> None:
    taken, waits, leave = [], threading.Event(), threading.Event()

    def third() -> None:
        waits.set()
        with claim("cuda") as device:
            taken.append(device.index)
            leave.wait(10)

    with claim("cuda"):
        with claim("cuda") as second:
            waiter = threading.Thread(target=third)
            waiter.start()
            waits.wait(10)
            time.sleep(0.05)
            assert taken == []
        for _ in range(500):
            if taken:
                break
            time.sleep(0.01)
        assert taken == [second.index]
        leave.set()
        waiter.join()
    assert "waiting for one" in capsys.readouterr().err


def test_several_are_claimed_together_or_not_at_all(two_gpus: list[int]) -> None:
    """While a claim of both waits for the second, the first is free for others."""
    taken = []

    def both() -> None:
        with claim_gpus(2) as indices:
            taken.append(indices)

    with claim("cuda"):
        waiter = threading.Thread(target=both)
        waiter.start()
        for _ in range(5):
            time.sleep(0.02)
            with claim("cuda") as other:
                assert other.index == 1
        assert taken == []
    waiter.join(10)
    assert taken == [[0, 1]]


def test_more_gpus_than_there_are_is_refused(two_gpus: list[int]) -> None:
    with (
        pytest.raises(InputError, match="3 processes need 3 GPUs and PyTorch sees 2"),
        claim_gpus(3),
    ):
        pass


def test_no_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="PyTorch sees none here"), claim("cuda"):
        pass


def test_batches_reach_a_device_unchanged() -> None:
    array = np.arange(6).reshape(2, 3)
    tensor = to_device(array, torch.device("cpu"))
    assert tensor.dtype == torch.int64 and tensor.tolist() == array.tolist()


@pytest.mark.gpu
def test_batches_reach_a_gpu_unchanged() -> None:
    array = np.arange(1 << 20).reshape(1024, 1024)
    tensors = [to_device(array + i, torch.device("cuda")) for i in range(8)]
    for i, tensor in enumerate(tensors):
        assert np.array_equal(tensor.cpu().numpy(), array + i)
    assert gpu_count() == torch.cuda.device_count() > 0


ON_TWO_GPUS = f"""
import sys
from pathlib import Path
PROJECT = Path({str(ROOT)!r})
sys.path.insert(0, str(PROJECT))
import relation.machine.devices
relation.machine.devices.gpu_count = lambda: 2
configfile: str(PROJECT / "config.yaml")
include: str(PROJECT / "workflow/rules/common.smk")
"""


@pytest.mark.campaign
def test_a_bare_call_runs_a_job_for_each_gpu(tmp_path: Path) -> None:
    """Each of two jobs waits for the other to be running as well; Snakemake starts for seconds."""
    rules = """
rule all:
    default_target: True
    input: expand("{job}.done", job=["a", "b"])
rule claim:
    output: "{job}.done"
    resources: gpu=1
    shell:
        "touch running.{wildcards.job}; for i in $(seq 200); do "
        "if [ $(ls running.* | wc -l) = 2 ]; then touch {output}; exit 0; fi; "
        "sleep 0.05; done; exit 1"
"""
    (tmp_path / "Snakefile").write_text(ON_TWO_GPUS + rules, encoding="utf-8")
    snakemake(tmp_path, "--cores", "4", "--config", "campaign=paper")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "choice, takes",
    [
        ([], {"train": "1 0", "diagnose": "1 0", "examine": "1 0", "measure": "2 2"}),
        (
            ["runs_per_gpu=4"],
            {"train": "0 1", "diagnose": "0 1", "examine": "1 4", "measure": "2 8"},
        ),
    ],
)
def test_runs_share_a_gpu_where_asked_and_none_is_trained_beside_a_benchmark(
    tmp_path: Path, choice: list[str], takes: dict[str, str]
) -> None:
    """What jobs take of two GPUs, and of the shares that runs may have of them."""
    rules = "".join(
        f'include: str(PROJECT / "workflow/rules/{stage}.smk")\n'
        for stage in ("data", "training", "diagnostics", "beyond", "systems")
    )
    listed = """
for rule in workflow.rules:
    of = (getattr(rule.resources.get(name), "value", None) for name in ("gpu", "gpu_share"))
    print("takes", rule.name, *of)
"""
    (tmp_path / "Snakefile").write_text(ON_TWO_GPUS + rules + listed, encoding="utf-8")
    said = snakemake(tmp_path, "--list-rules", "--config", "campaign=paper", *choice).stdout
    found = (line.split(maxsplit=2)[1:] for line in said.splitlines() if line[:6] == "takes ")
    assert {rule: gpus for rule, gpus in found if rule in (*takes, "prepare")} == {
        "prepare": "None None",
        **takes,
    }
