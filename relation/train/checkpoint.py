"""Checkpoints in safetensors: a trained model, and the state from which a killed run goes on."""

import errno
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from relation import records
from relation.errors import InputError
from relation.nn import Decoder, Execution
from relation.nn.model import weights_hash
from relation.variants import ModelConfig

_DAMAGE = (SafetensorError, AttributeError, KeyError, RuntimeError, TypeError, ValueError)


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write a file; a kill leaves the one before it, or this one, whole.

    Errors of the disk are OSError or RunError.
    """
    with records.atomic(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors ignores the umask
        try:
            save_file(dict(tensors), temporary, metadata=metadata)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error
        temporary.chmod(mode)


def save_model(model: Decoder, path: Path, details: dict) -> None:
    """Write a model's FP32 parameters with its configuration and `details` in the header."""
    tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    details = {**details, "sha256": weights_hash(tensors)}
    # One key: safetensors writes several in an order that changes from run to run.
    metadata = json.dumps({**asdict(model.config), "details": details}, sort_keys=True)
    write(path, tensors, {"model": metadata})


def trained_as(path: Path) -> str | None:
    """The hash of the run that wrote a checkpoint. Raises InputError for none or a damaged one."""
    with _readable(path), safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["model"])["details"].get("hash")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What reading a checkpoint raises becomes an InputError."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run snakemake to train it") from None
    except (OSError, *_DAMAGE) as error:
        reason = " ".join(str(error).split("\n\t")[:2])  # PyTorch lists every tensor
        raise InputError(
            f"{path} is no complete checkpoint of this version ({reason}); if snakemake made it, "
            "move it away and run snakemake again"
        ) from None


def load_model(path: Path, device: torch.device, execution: Execution | None = None) -> Decoder:
    """The trained model of a checkpoint. Raises InputError for none or a damaged one."""
    with _readable(path):
        with safe_open(path, framework="pt") as file:
            values = json.loads(file.metadata()["model"])
        written = values.pop("details", {}).get("sha256")
        config, weights = ModelConfig(**values), load_file(path)
        if written is not None and written != weights_hash(weights):
            raise ValueError("its weights are not those that were written")
    model = Decoder(config, execution, seed=None, device=device)
    with _readable(path):
        model.load_state_dict(weights)
    return model


@dataclass
class RunState:
    """How far a run has come: what a resume state holds besides the tensors.

    `update` is the data cursor: the windows of the next update follow from it, and `order_hash`
    vouches for those read. No generator's state is kept, as training draws nothing at random once
    the weights are initialised. `losses`, `norms` and `seconds` have a value an update; `processes`
    lists how many trained it, in order of change; `probes` holds their rows so far.
    """

    init_hash: str
    order_hash: str
    update: int = 0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    probes: list[dict] = field(default_factory=list)


def resume_key(hash: str, *execution: object) -> str:
    """What a resume state must have been made by: a specification, its execution, and the code."""
    code = hashlib.sha256(torch.__version__.encode())
    folders = (records.PROJECT / "relation", records.PROJECT / "kernels")
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        if path.suffix in (".py", ".csv"):
            code.update(f"{path.relative_to(records.PROJECT)}\0".encode() + path.read_bytes())
    return json.dumps([hash, code.hexdigest(), *execution], sort_keys=True)


def snapshot(
    model: Decoder, optimizer: torch.optim.Optimizer, state: RunState, key: str
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Parameters, moments and progress as they are now, copied to the host, for `write`."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
    copies = {name: t.to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    return copies, {"state": json.dumps(asdict(state)), "key": key}


def load_state(
    path: Path, key: str, model: Decoder, optimizer: torch.optim.Optimizer, warn: bool = True
) -> RunState | None:
    """Restore a resume state into model and optimiser.

    None where there is none, it is damaged or `key` is not its own; of the last two it may `warn`.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata()["key"] != key:
                raise ValueError("other code, data, execution or probes made it")
            state = RunState(**json.loads(file.metadata()["state"]))
        tensors = load_file(path)
    except (OSError, *_DAMAGE) as error:
        if warn:
            print(f"warning: {path} is not used ({error}); the run starts anew", file=sys.stderr)
        return None
    model.load_state_dict({n: tensors.pop(f"model.{n}") for n, _ in model.named_parameters()})
    moments: dict[int, dict] = {}
    for name, value in tensors.items():
        _, index, moment = name.split(".")  # optimizer.3.exp_avg, as `snapshot` names them
        moments.setdefault(int(index), {})[moment] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return state
