"""Checkpoints in safetensors: trained models, and the resume states of killed runs."""

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
from relation.variants import ModelConfig

_DAMAGE = (SafetensorError, AttributeError, KeyError, RuntimeError, TypeError, ValueError)


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically: a kill leaves either the old file or the new one.

    Raises OSError or RunError if the disk fails or is full.
    """
    with records.atomic(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors ignores the umask
        try:
            save_file(dict(tensors), temporary, metadata=metadata)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error
        temporary.chmod(mode)


def weights_hash(tensors: Mapping[str, torch.Tensor], text: str = "") -> str:
    """SHA-256 of a text, and of the names and values of FP32 tensors in the order of the names."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def matrices_hash(model: Decoder) -> str:
    """The `weights_hash` of a model's matrices. MHA and Full Relation have the same matrices.

    Before training, equal hashes prove that the two runs of a pair start from the same weights.
    """
    return weights_hash({name: p for name, p in model.named_parameters() if p.ndim == 2})


def save_model(model: Decoder, path: Path, details: dict) -> None:
    """Write a model's FP32 parameters; the header holds its configuration and `details`."""
    tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    details = {**details, "sha256": weights_hash(tensors)}
    # A single key: safetensors writes several keys in an order that changes from run to run.
    metadata = json.dumps({**asdict(model.config), "details": details}, sort_keys=True)
    write(path, tensors, {"model": metadata})


def trained_as(path: Path) -> str | None:
    """Return the hash of the run that wrote a checkpoint. Raises InputError like `load_model`."""
    with _readable(path), safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["model"])["details"].get("hash")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn an error in reading a checkpoint into an InputError."""
    remedy = f"end the campaign's snakemake command with `-- {path}`"
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {remedy}") from None
    except (OSError, *_DAMAGE) as error:
        reason = " ".join(str(error).split("\n\t")[:2])  # PyTorch's message lists every tensor
        raise InputError(
            f"{path} is not a complete checkpoint of this version ({reason}); if snakemake made "
            f"it, move it elsewhere and {remedy}"
        ) from None


def load_model(path: Path, device: torch.device, execution: Execution | None = None) -> Decoder:
    """Load a checkpoint's model. Raises InputError if the file is missing or damaged."""
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
    """The progress of a run: everything in a resume state except the tensors.

    order_hash: of the windows read so far. losses, norms, seconds: one value per update. processes:
    the number of processes, with one more entry for each change. probes: the rows so far. There is
    no state of a random generator, because after the initial weights nothing is random.
    """

    init_hash: str
    order_hash: str
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    probes: list[dict] = field(default_factory=list)

    @property
    def update(self) -> int:
        """How many updates are done, which determines the next update's windows."""
        return len(self.losses)


def resume_key(hash: str, *execution: object) -> str:
    """Return the key that a resume state must match: specification, execution and code."""
    code = hashlib.sha256(torch.__version__.encode())
    folders = (records.PROJECT / "relation", records.PROJECT / "kernels")
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        if path.suffix in (".py", ".csv"):
            code.update(f"{path.relative_to(records.PROJECT)}\0".encode() + path.read_bytes())
    return json.dumps([hash, code.hexdigest(), *execution], sort_keys=True)


def snapshot(
    model: Decoder, optimizer: torch.optim.Optimizer, state: RunState, key: str
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Copy parameters, moments and progress to the host; return arguments of `write_state`."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
    copies = {name: t.to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    return copies, {"state": json.dumps(asdict(state)), "key": key}


def write_state(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write a `snapshot` with a hash of its values, which `load_state` checks."""
    write(path, tensors, metadata | {"sha256": weights_hash(tensors, metadata["state"])})


def load_state(
    path: Path, key: str, model: Decoder, optimizer: torch.optim.Optimizer, warn: bool = True
) -> RunState | None:
    """Restore model and optimiser from a resume state, and return its progress.

    Returns None for a missing file, and for a damaged file or another key; then `warn` prints why.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        if metadata["key"] != key:
            raise ValueError("other code, data, execution or probe options made it")
        tensors, state = load_file(path), RunState(**json.loads(metadata["state"]))
        if metadata["sha256"] != weights_hash(tensors, metadata["state"]):
            raise ValueError("its values are not those that were written")
    except (OSError, *_DAMAGE) as error:
        if warn:
            print(f"warning: {path} is not used ({error}); the run starts over", file=sys.stderr)
        return None
    model.load_state_dict({n: tensors.pop(f"model.{n}") for n, _ in model.named_parameters()})
    moments: dict[int, dict] = {}
    for name, value in tensors.items():
        _, index, moment = name.split(".")  # optimizer.3.exp_avg, as `snapshot` names them
        moments.setdefault(int(index), {})[moment] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    return state
