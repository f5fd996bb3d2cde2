"""Checkpoints in safetensors: a trained model, and the state from which a killed run goes on."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from relation.errors import InputError
from relation.files import atomic_path, sha256_of, write_text
from relation.geometry import model_config
from relation.model import Decoder, Execution


def save_model(model: Decoder, path: Path, details: dict) -> None:
    """Write a model's FP32 parameters with its configuration and `details` in the header."""
    # One key: safetensors writes several in an order that changes from run to run.
    metadata = {"model": json.dumps({**asdict(model.config), "details": details}, sort_keys=True)}
    tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def load_model(path: Path, device: torch.device, execution: Execution | None = None) -> Decoder:
    """The trained model of a checkpoint. Raises InputError for none or a damaged one."""
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads(file.metadata()["model"])
            values.pop("details", None)
        tensors = load_file(path)
        model = Decoder(model_config(values), execution)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run snakemake to train it") from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error}); give the model.safetensors of a run"
        ) from None
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is no complete checkpoint ({error}); delete it and run snakemake again"
        ) from None
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        detail = str(error).splitlines()[0]
        raise InputError(f"{path} does not fit its own configuration ({detail})") from None
    return model.to(device)


@dataclass
class Progressed:
    """How far a run has come: what a resume state holds besides the tensors."""

    update: int
    order_hash: str
    init_hash: str
    seconds: float
    log: dict[str, list]


def newest_state(folder: Path) -> Path | None:
    """The newest resume state of a folder, if there is one."""
    return max(folder.glob("state-*.safetensors"), default=None)


def save_state(folder: Path, model: Decoder, optimizer, progressed: Progressed) -> None:
    """Write a resume state and its checksum; the one before it is kept, older ones go."""
    tensors = {f"model.{n}": p.detach().cpu().contiguous() for n, p in model.named_parameters()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": v.cpu().contiguous() for k, v in state.items()}
    path = folder / f"state-{progressed.update:08d}.safetensors"
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"progressed": json.dumps(asdict(progressed))})
    write_text(path.with_suffix(".sha256"), sha256_of(path))
    for old in sorted(folder.glob("state-*.safetensors"))[:-2]:
        old.unlink()
        old.with_suffix(".sha256").unlink(missing_ok=True)


def load_state(folder: Path, model: Decoder, optimizer) -> Progressed | None:
    """Restore the newest whole resume state of a folder into model and optimiser, or None.

    A state that fails its checksum is passed over with a warning and the one before it is used.
    """
    for path in sorted(folder.glob("state-*.safetensors"), reverse=True):
        checksum = path.with_suffix(".sha256")
        if not checksum.exists() or checksum.read_text(encoding="utf-8") != sha256_of(path):
            print(f"warning: {path} fails its checksum; trying the state before", file=sys.stderr)
            continue
        with safe_open(path, framework="pt") as file:
            progressed = Progressed(**json.loads(file.metadata()["progressed"]))
        tensors = load_file(path)
        model.load_state_dict(
            {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        )
        state: dict[int, dict] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".")
                state.setdefault(int(index), {})[name] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        return progressed
    return None
