"""What a GPU reports of itself while a benchmark runs. It is read, never set."""

import os
import subprocess

import torch

_FIELDS = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "temperature.gpu",
    "power.draw",
)


def _query(what: str, uuid: str) -> list[list[str]] | str:
    """Rows of an nvidia-smi query, or one line that says why there are none."""
    command = ["nvidia-smi", "-i", uuid, f"--query-{what}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi did not run: {error}"
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        return f"nvidia-smi failed: {said[0] if said else done.returncode}"
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]


def gpu_state(device: torch.device, moment: str) -> dict | None:
    """Driver, clocks (MHz), temperature (C), power (W) and the ids of compute processes.

    Values are nvidia-smi's text; `error` says why they are missing. This process's id is left out;
    in a container nvidia-smi may list the host's ids, and this process under one of them. None on
    a CPU.
    """
    if device.type != "cuda":
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    state: dict = {"moment": moment}
    gpu, processes = _query(f"gpu={','.join(_FIELDS)}", uuid), _query("compute-apps=pid", uuid)
    for found in (gpu, processes):
        if isinstance(found, str):
            return state | {"error": found}
    state |= dict(zip(_FIELDS, gpu[0], strict=True))
    return state | {"compute_processes": [p for p, *_ in processes if p != str(os.getpid())]}


def libraries(device: torch.device) -> dict:
    """Versions of the GPU libraries that PyTorch was built with; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
