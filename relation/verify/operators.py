"""Checks FlashRelation and Linear Relation against their definitions, and the paper's identities.

What the tests prove elsewhere, a campaign records for its own backends, precision, shapes and GPU.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from relation.machine.devices import claim, describe
from relation.machine.progress import Progress
from relation.ops import full_relation, get_backend, givens_mix, linear_relation
from relation.pipeline.origin import origin
from relation.pipeline.uses import uses_of
from relation.spec import VerificationSpec
from relation.store.layouts import VERIFICATION
from relation.store.parquet import write_parquet
from relation.variants import ModelConfig
from relation.verify.exact import Deviation, deviations
from relation.verify.identities import (
    BITWISE,
    SIZES,
    Operator,
    exchange_gate,
    history_errors,
    history_retention,
    history_states,
    identity_errors,
    mixing_errors,
    parameter_dtype,
    recurrence_deviations,
)
from relation.verify.inputs import Inputs, Shape

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
# BF16 rounds a share of flow to 2^-9 of it, the sums of a row and of a score add to that. A mixed
# entry is rounded once, so that lengths are off by 2^-8 and what comes back by 3 * 2^-9.
_IDENTITY_SLACK = {"bf16": 2.0**-7, "fp32": 1e-5, "fp64": 1e-12}
_DEFINITION = "definition"


def _with_gradients(operator: Operator) -> Callable[[Inputs], tuple[Tensor, ...]]:
    def call(inputs: Inputs) -> tuple[Tensor, ...]:
        leaves = [inputs[name] for name in ("p1", "p2", "info", "lam")]
        y = operator(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, inputs["dy"])

    return call


def _deviation(check: str, operator: str, precision: str, off: Deviation) -> dict:
    return {
        "check": check,
        "name": off.result,
        "operator": operator,
        "precision": precision,
        "measure": off.measure,
        "error": off.error,
        "yardstick": off.yardstick,
        "allowed": off.allowed,
    }


def _exactness(
    spec: VerificationSpec, operator: Operator, device: torch.device, progress: Progress
) -> Iterator[dict]:
    dtype = _DTYPES[spec.precision]
    for at in spec.shapes:
        for length in dict.fromkeys((at["length"], max(1, at["length"] - 1))):
            shape = Shape(at["scale"], 1, at["heads"], length, at["width"])
            for off in deviations(_with_gradients(operator), shape, dtype, device, spec.draws):
                row = _deviation("exactness", spec.backend, spec.precision, off)
                yield row | at | {"length": length, "draws": spec.draws}
            progress.advance(1, f"{at['scale']} T={length}")


def _errors(check: str, operator: str, precision: str, errors: dict, what: str = "") -> list[dict]:
    return [
        {
            "check": check,
            "name": f"{what}{name}",
            "operator": operator,
            "precision": precision,
            "measure": "largest",
            "error": error,
            "yardstick": None,
            "allowed": 0.0 if name in BITWISE else _IDENTITY_SLACK[precision],
        }
        for name, error in errors.items()
    ]


def _full(name: str, operator: Operator, precision: str, device: torch.device) -> list[dict]:
    """Identities and history of Full Relation."""
    dtype = _DTYPES[precision]
    states = history_states(dtype, device)
    lam = torch.tensor(ModelConfig.lambda_init, dtype=parameter_dtype(dtype), device=device)
    share = 1 - exchange_gate(*states[:2], lam)
    history = history_errors(lambda *given: operator(*given, lam), states, share)
    return [
        *_errors("identity", name, precision, identity_errors(operator, dtype, device)),
        *_errors("history", name, precision, history, "Full Relation: "),
    ]


def _linear(name: str, operator: Operator, precision: str, device: torch.device) -> list[dict]:
    """History of Linear Relation."""
    states = history_states(_DTYPES[precision], device)
    g = history_retention(_DTYPES[precision], device)

    def y(*given: Tensor) -> Tensor:
        return operator(*given, g.expand_as(given[0]).contiguous())[0]

    history = history_errors(y, states, torch.ones_like(g[..., 0]))
    return _errors("history", name, precision, history, "Linear Relation: ")


def _identities(spec: VerificationSpec, full: Operator, device: torch.device) -> Iterator[dict]:
    linear = get_backend("linear", spec.linear, device).call
    yield from _full(_DEFINITION, full_relation, "fp64", device)
    yield from _full(spec.backend, full, spec.precision, device)
    for precision in dict.fromkeys(("fp64", spec.precision)):
        errors = mixing_errors(givens_mix, _DTYPES[precision], device)
        yield from _errors("mixing", _DEFINITION, precision, errors)
    for name, precision in (
        ("expanded", "fp64"),
        ("chunked", "fp64"),
        (spec.linear, spec.precision),
    ):
        operator = get_backend("linear", name).call
        for off in recurrence_deviations(operator, _DTYPES[precision], device):
            yield _deviation("recurrence", name, precision, off)
    yield from _linear(_DEFINITION, linear_relation, "fp64", device)
    yield from _linear(spec.linear, linear, spec.precision, device)


def verify(spec: VerificationSpec, output: Path) -> None:
    """Check a campaign's backends of Full and Linear Relation; write a row a checked quantity.

    An error above what is allowed is a row too: the report's ledger judges it. Raises InputError
    where the device cannot run a backend.
    """
    with claim(spec.device) as device:
        operator = get_backend("full", spec.backend, device).call
        with Progress(f"verify {spec.backend}", 2 * len(spec.shapes), "shapes") as progress:
            rows = [*_exactness(spec, operator, device, progress)]
        rows += _identities(spec, operator, device)
        written = origin(
            spec.campaign, spec.config_hash, "verification", describe(device), uses_of(spec)
        )
        of_all = {"scale": "", "draws": 1, "device": describe(device)}
    rows = [of_all | SIZES.get(row["check"], {}) | row for row in rows]
    write_parquet(output, VERIFICATION, rows, written)
