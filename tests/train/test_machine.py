"""Claims of GPUs that this machine does not have, as several processes make them."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import refusal

from relation import machine


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Two GPUs, whose locks lie in a folder of the test's own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"gpu-{index}")
    )
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))

    def busy(seconds: float) -> None:
        raise TimeoutError("a job would wait")

    monkeypatch.setattr(machine.time, "sleep", busy)


def test_a_gpu_belongs_to_one_job_or_to_as_many_as_share_it(gpus) -> None:
    cuda, shared = (partial(machine.claim, "cuda", n, empty=True) for n in (1, 3))
    with cuda() as one, cuda() as other, pytest.raises(TimeoutError), cuda():
        assert (one.index, other.index) == (0, 1)
    with shared() as first, shared() as second, cuda() as whole:
        assert first.index == second.index == 0, "the first GPU is filled first"
        assert whole.index == 1, "a benchmark shares its GPU with nobody"
        with pytest.raises(TimeoutError), cuda():
            pass


def test_a_gpu_that_is_not_there_is_one_line() -> None:
    if not torch.cuda.is_available():
        assert "PyTorch sees none" in refusal(lambda: machine.claim("cuda").__enter__())
    with machine.claim("cpu") as device:
        assert device == torch.device("cpu") and machine.describe(device).startswith("CPU (")
