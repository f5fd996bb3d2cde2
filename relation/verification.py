"""Checks FlashRelation against its definition on this device, and the paper's identities.

What the tests prove elsewhere, a campaign records for its own backend, precision, shapes and GPU.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from relation.devices import claim, describe
from relation.geometry import ModelConfig
from relation.operators import full_relation, get_backend
from relation.operators.scores import scores
from relation.origin import origin
from relation.parquet import write_parquet
from relation.progress import Progress
from relation.schemas import VERIFICATION
from relation.spec import VerificationSpec
from relation.systems.bench.peers import Inputs, Shape
from relation.systems.tuning.exact import deviations

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
# BF16 rounds a share of flow to 2^-9 of it, the sums of a row and of a score add to that.
_IDENTITY_SLACK = {"bf16": 2.0**-7, "fp32": 1e-5, "fp64": 1e-12}
# The flow itself is what the operator transports of the unit vectors, for which D must be T.
_IDENTITY_LENGTH = 64
_OTHER_LAMBDA = -1.0

Operator = Callable[..., Tensor]


def _with_gradients(operator: Operator) -> Callable[[Inputs], tuple[Tensor, ...]]:
    def call(inputs: Inputs) -> tuple[Tensor, ...]:
        leaves = [inputs[name] for name in ("p1", "p2", "info", "lam")]
        y = operator(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, inputs["dy"])

    return call


def _split(p1: Tensor, p2: Tensor, lam: Tensor) -> Tensor:
    """The exchange gate g (B, H, T) of Section 4.2, by its two levels, in FP64."""
    U = scores(p1.double(), p2.double())
    T = U.shape[-1]
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / ModelConfig.tau)
    history = torch.ones(T, T, dtype=torch.bool, device=U.device).tril(-1)
    E = torch.nn.functional.silu(U).masked_fill(~history, -torch.inf)
    i = torch.arange(1, T + 1, dtype=U.dtype, device=U.device)
    return torch.sigmoid(E.logsumexp(-1) - lam.double() * i.log() - S)


def identity_errors(operator: Operator, dtype: torch.dtype, device: torch.device) -> dict:
    """The largest error of three of the paper's identities on random states.

    Sections 4.2 and 4.3, Appendix A.1.8.

    operator: Full Relation of p1, p2, info (1, H, T, D) in `dtype` and lam. The flow is read off
    what it transports of unit vectors, the gate from the two levels in FP64.
    """
    generator = torch.Generator(device).manual_seed(2)
    T = _IDENTITY_LENGTH
    drawn = torch.randn(3, 1, 2, T, T, device=device, generator=generator).to(dtype)
    p1, p2, info = drawn
    unit = torch.eye(T, dtype=dtype, device=device).expand_as(info).contiguous()
    parameter = torch.float64 if dtype == torch.float64 else torch.float32
    lams = [
        torch.tensor(value, dtype=parameter, device=device)
        for value in (ModelConfig.lambda_init, _OTHER_LAMBDA)
    ]
    flow, other = (operator(p1, p2, unit, lam).double() for lam in lams)
    own = flow.diagonal(dim1=-2, dim2=-1)
    allocations = []
    for found in (flow, other):
        exchange = found.tril(-1)[:, :, 1:]
        allocations.append(exchange / exchange.sum(-1, keepdim=True))
    y = operator(p1, p2, info, lams[0])
    errors = {
        "F_ii + g_i = 1": own + _split(p1, p2, lams[0]) - 1,
        "the count correction leaves the allocation": allocations[0] - allocations[1],
        "the first token's output is its information": (y - info)[:, :, 0],
    }
    return {name: error.abs().max().item() for name, error in errors.items()}


def _exactness(
    spec: VerificationSpec, operator: Operator, device: torch.device, progress: Progress
) -> Iterator[dict]:
    dtype = _DTYPES[spec.precision]
    for at in spec.shapes:
        for length in dict.fromkeys((at["length"], max(1, at["length"] - 1))):
            shape = Shape(at["scale"], 1, at["heads"], length, at["width"])
            for off in deviations(_with_gradients(operator), shape, dtype, device, spec.draws):
                yield {
                    "check": "exactness",
                    "name": off.result,
                    "operator": spec.backend,
                    **(at | {"length": length}),
                    "precision": spec.precision,
                    "measure": off.measure,
                    "error": off.error,
                    "yardstick": off.yardstick,
                    "allowed": off.allowed,
                    "draws": spec.draws,
                    "device": describe(device),
                }
            progress.advance(1, f"{at['scale']} T={length}")


def _identities(spec: VerificationSpec, operator: Operator, device: torch.device) -> Iterator[dict]:
    for name, checked, precision in (
        ("definition", full_relation, "fp64"),
        (spec.backend, operator, spec.precision),
    ):
        for identity, error in identity_errors(checked, _DTYPES[precision], device).items():
            yield {
                "check": "identity",
                "name": identity,
                "operator": name,
                "scale": "",
                "heads": 2,
                "length": _IDENTITY_LENGTH,
                "width": _IDENTITY_LENGTH,
                "precision": precision,
                "measure": "largest",
                "error": error,
                "yardstick": None,
                "allowed": _IDENTITY_SLACK[precision],
                "draws": 1,
                "device": describe(device),
            }


def verify(spec: VerificationSpec, output: Path) -> None:
    """Check one backend of Full Relation and write a row a checked quantity.

    An error above what is allowed is a row too: the report's ledger judges it. Raises InputError
    where the device cannot run the backend.
    """
    with claim(spec.device) as device:
        operator = get_backend("full", spec.backend, device).call
        with Progress(f"verify {spec.backend}", 2 * len(spec.shapes), "shapes") as progress:
            rows = [*_exactness(spec, operator, device, progress)]
        rows += _identities(spec, operator, device)
        written = origin(spec.campaign, spec.config_hash, "verification", describe(device))
    write_parquet(output, VERIFICATION, rows, written)
