"""Checkpoints in safetensors: a trained model, and the state from which a killed run goes on."""

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from relation.errors import InputError, RunError
from relation.nn import Decoder, Execution
from relation.store.files import atomic_path, move, sha256_of, sync
from relation.store.parquet import read_origin
from relation.store.seal import KEY, UNSEALED, is_sealed, seal
from relation.train.shards import as_held, whole
from relation.variants import ModelConfig, model_config


def _write(tensors: Mapping[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
    """save_file, whose errors of the disk are OSErrors and whose files others may read.

    By itself it lets nobody but their owner read them, whatever the umask says.
    """
    path.touch()
    permissions = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(permissions)


def save_model(model: Decoder, path: Path, details: dict) -> None:
    """Write a model's FP32 parameters with its configuration and `details` in the header."""
    # One key: safetensors writes several in an order that changes from run to run.
    values = {**asdict(model.config), "details": details, KEY: UNSEALED}
    metadata = {"model": json.dumps(values, sort_keys=True)}
    tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    with atomic_path(path) as temporary:
        _write(tensors, temporary, metadata)
        seal(temporary)


def load_model(path: Path, device: torch.device, execution: Execution | None = None) -> Decoder:
    """The trained model of a checkpoint. Raises InputError for none or a damaged one.

    Warns where nothing is there to check it with: no checksum in it and no record beside it.
    """
    try:
        sealed = is_sealed(path)
        with safe_open(path, framework="pt") as file:
            values = json.loads(file.metadata()["model"])
            for other in ("details", KEY):
                values.pop(other, None)
            config = model_config(values)
            _check_tensors(file, config)
        tensors = load_file(path)
        model = Decoder(config, execution)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run snakemake to train it") from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error}); give the model.safetensors of a run"
        ) from None
    except (
        SafetensorError,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"{path} is no complete checkpoint ({error}); if snakemake made it, "
            "delete it and run snakemake again"
        ) from None
    if not _is_recorded(path) and not sealed:
        print(f"warning: {path} has no checksum; whether it is whole is not known", file=sys.stderr)
    model.load_state_dict(tensors)
    return model.to(device)


def _check_tensors(file, config: ModelConfig) -> None:
    """Raise ValueError unless the file holds the parameters of that very model, in FP32.

    Before any of it is built, so that a header cannot ask for more memory than the file is large.
    """
    names = set(file.keys())
    if config.layers > len(names):
        raise ValueError(f"{len(names)} tensors for {config.layers} layers")
    with torch.device("meta"):
        expected = {name: list(p.shape) for name, p in Decoder(config).named_parameters()}
    if odd := sorted(expected.keys() ^ names):
        raise ValueError(f"it and its configuration differ in {odd[0]}")
    for name, shape in expected.items():
        part = file.get_slice(name)
        if part.get_shape() != shape or part.get_dtype() != "F32":
            found = f"{part.get_dtype()} of shape {part.get_shape()}"
            raise ValueError(f"{name} is {found}, its configuration says F32 of {shape}")


def _is_recorded(path: Path) -> bool:
    """Whether a run's record beside its checkpoint has this checkpoint's checksum.

    Raises InputError where it has another's.
    """
    record = path.with_name("record.parquet")
    recorded = read_origin(record).get("checkpoint_sha256") if record.exists() else None
    if recorded not in (None, sha256_of(path)):
        raise InputError(
            f"{path} is not the file that {record.name} tells of; delete it and run snakemake again"
        )
    return recorded is not None


@dataclass
class Progressed:
    """How far a run has come: what a resume state holds besides the tensors.

    `update` is the data cursor: the windows of the next update follow from it, and `order_hash`
    vouches for those read. No generator's state is kept, as training draws nothing at random once
    the weights are initialised. `processes` lists how many trained it, in order of change;
    `probes` holds the rows of the probes so far, `probed_by` what they say of themselves.
    """

    update: int
    order_hash: str
    init_hash: str
    seconds: float
    log: dict[str, list]
    processes: list[int]
    probes: list[dict] = field(default_factory=list)
    probed_by: dict = field(default_factory=dict)


def _states(folder: Path) -> list[Path]:
    """The resume states of a folder, the newest last; a name holds the update and the checksum."""
    return sorted(folder.glob("state-*.safetensors"))


def _checksum(path: Path) -> str:
    return sha256_of(path)[:16]


def newest_state(folder: Path) -> Path | None:
    """The newest resume state of a folder, if there is one."""
    return max(_states(folder), default=None)


def newest_whole_state(folder: Path) -> Path | None:
    """The newest resume state whose content has the checksum in its name, or None.

    One that fails it is renamed and passed over with a warning, for the one before.
    """
    for path in reversed(_states(folder)):
        if path.stem.rpartition("-")[2] == _checksum(path):
            return path
        path.rename(path.with_name(f"damaged-{path.name}"))
        print(
            f"warning: {path} fails its checksum; trying the state before (kept as "
            f"damaged-{path.name})",
            file=sys.stderr,
        )
    return None


def sweep(folder: Path) -> None:
    """Remove what a process that was killed while it wrote left in a folder: hidden files."""
    for path in folder.glob(".*"):
        path.unlink()


class Snapshot(NamedTuple):
    """A run after an update, on the host: nothing that training goes on with is shared."""

    update: int
    tensors: dict[str, torch.Tensor]
    progressed: str


def snapshot(
    model: Decoder, optimizer: torch.optim.Optimizer, progressed: Progressed, keep: bool = True
) -> Snapshot | None:
    """Copy parameters, optimiser and progress as they are now.

    All processes of a sharded model call it; None in those that do not `keep` what it gathers.
    """
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
    copies = {}
    for name, tensor in tensors.items():
        values = whole(tensor)
        if keep:
            copies[name] = values.to("cpu", copy=True).contiguous()
    return Snapshot(progressed.update, copies, json.dumps(asdict(progressed))) if keep else None


def _reads_back(path: Path, taken: Snapshot) -> bool:
    """Whether a file holds this very snapshot."""
    with safe_open(path, framework="pt") as file:
        return (
            file.metadata()["progressed"] == taken.progressed
            and set(file.keys()) == set(taken.tensors)
            and all(torch.equal(file.get_tensor(n), t) for n, t in taken.tensors.items())
        )


def write_state(folder: Path, taken: Snapshot) -> None:
    """Write a resume state; it takes its name only once it has been read back and found equal.

    The one before it is kept, older ones go. Raises OSError where it cannot be written and
    RunError where what was written does not read back; the states before are then untouched.
    """
    partial = folder / ".state"
    try:
        _write(taken.tensors, partial, {"progressed": taken.progressed})
        sync(partial)
        if not _reads_back(partial, taken):
            raise RunError(
                f"the state of update {taken.update} does not read back from {folder} as it was "
                "written; look after that disk and run the same command again"
            )
        name = f"state-{taken.update:08d}-{_checksum(partial)}.safetensors"
        move(partial, folder / name)
    finally:
        partial.unlink(missing_ok=True)
    for old in _states(folder)[:-2]:
        old.unlink()


class StateWriter:
    """Writes a run's resume states, one at a time; a context manager that ends when all are.

    aside: in a thread, so that a GPU trains on meanwhile. What goes wrong there is raised by the
    next `write`, `check` or `wait`.
    """

    def __init__(self, folder: Path, aside: bool):
        self._folder, self._aside = folder, aside
        self._pool, self._future = ThreadPoolExecutor(1), None

    def __enter__(self) -> "StateWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown()

    def write(self, taken: Snapshot) -> None:
        """`write_state`, begun if aside, done if not."""
        self.wait()
        if self._aside:
            self._future = self._pool.submit(write_state, self._folder, taken)
        else:
            write_state(self._folder, taken)

    def check(self) -> None:
        """Raise what the last write raised, if it has come that far."""
        if self._future is not None and self._future.done():
            self.wait()

    def wait(self) -> None:
        """Return once nothing is being written."""
        future, self._future = self._future, None
        if future is not None:
            future.result()

    def settle(self) -> None:
        """Return once nothing is being written, and raise nothing."""
        if self._future is not None:
            wait([self._future])


def load_state(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> Progressed:
    """Restore a resume state into model and optimiser, whole or sharded as they are.

    A state is that of a whole model, however many processes saved it.
    """
    with safe_open(path, framework="pt") as file:
        progressed = Progressed(**json.loads(file.metadata()["progressed"]))
    tensors = load_file(path)
    parameters = model.named_parameters()
    model.load_state_dict({n: as_held(tensors.pop(f"model.{n}"), p) for n, p in parameters})
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict] = {}
    for key, value in tensors.items():
        _, index, name = key.split(".")
        held = value if name == "step" else as_held(value, trained[int(index)])
        state.setdefault(int(index), {})[name] = held
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return progressed
