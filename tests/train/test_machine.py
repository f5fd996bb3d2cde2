"""Several processes claim GPUs that this machine may not have."""

from types import SimpleNamespace

import pytest
import torch
from conftest import refusal

from relation import machine


def test_a_gpu_belongs_to_one_job_or_to_as_many_as_share_it(monkeypatch, tmp_path) -> None:
    """This machine pretends to have two GPUs, with locks in a folder of the test."""

    def busy(seconds: float) -> None:
        raise TimeoutError("a job would wait")

    properties = lambda index: SimpleNamespace(uuid=f"gpu-{index}")  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(machine.time, "sleep", busy)
    with machine.gpu_lock() as one, machine.gpu_lock() as other:
        assert (one, other) == ([0], [1])
        with pytest.raises(TimeoutError), machine.gpu_lock():
            pass
    with machine.gpu_lock(2) as both, pytest.raises(TimeoutError), machine.gpu_lock():
        assert both == [0, 1]
    with machine.gpu_lock(runs_per_gpu=3) as first, machine.gpu_lock(runs_per_gpu=3) as second:
        assert first == second == [0], "the first GPU is filled first"
        with pytest.raises(TimeoutError), machine.gpu_lock(2):
            pass
        with machine.gpu_lock() as whole:
            assert whole == [1], "a benchmark shares its GPU with nobody"
    assert "need 3 GPUs" in refusal(lambda: machine.gpu_lock(3).__enter__())


def test_a_gpu_that_is_not_there_is_one_line() -> None:
    if not torch.cuda.is_available():
        assert "PyTorch sees none" in refusal(lambda: machine.claim("cuda").__enter__())
    with machine.claim("cpu") as device:
        assert device == torch.device("cpu") and machine.describe(device).startswith("CPU (")
