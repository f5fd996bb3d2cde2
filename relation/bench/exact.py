"""How far a peer's results lie from its definition in FP32."""

import torch
from torch import Tensor

from relation.bench.peers import Peer
from relation.errors import RunError
from relation.verify.inputs import Inputs, Operator, Shape

# BF16 rounds to 2^-9 of a value; another function is off by its own size.
_SAME_FUNCTION = 0.02


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def relative_errors(peer: Peer, call: Operator, inputs: Inputs) -> dict[str, float]:
    """RMS of Y and of each wanted gradient minus its definition in FP32, over the definition's RMS.

    On the first sequence and at most its first `peer.checked_tokens` tokens: a causal operator's
    rows depend on no token after them, and the gradient of Y is zero elsewhere. By name: "Y",
    "dp1" and so on.
    """

    def start(x: Tensor) -> Tensor:
        return x[:1, :, : peer.checked_tokens] if x.ndim else x

    dy = torch.zeros_like(inputs["dy"])
    start(dy).copy_(start(inputs["dy"]))
    # Not under no_grad: what is compiled would be compiled once more.
    y = call(*(inputs[name] for name in peer.takes))
    gradients = torch.autograd.grad(y, [inputs[name] for name in peer.wanted], dy)

    given = {name: start(inputs[name].detach()).float() for name in peer.takes}
    leaves = [given[name].requires_grad_() for name in peer.wanted]
    truth_dy, truth = start(dy).float(), peer.definition(*given.values())
    truths = torch.autograd.grad(truth, leaves, truth_dy)

    errors = {"Y": (_rms(start(y.detach()).float() - truth.detach()) / _rms(truth)).item()}
    for name, found, expected in zip(peer.wanted, gradients, truths, strict=True):
        if expected.ndim:
            size = _rms(expected)
        else:
            size = _scalar_gradient_rms(peer, given, name, truth_dy)
        errors[f"d{name}"] = (_rms(start(found).float() - expected) / size).item()
    return errors


def _scalar_gradient_rms(peer: Peer, given: Inputs, name: str, dy: Tensor) -> Tensor:
    """RMS of a scalar's gradient over all dy as large as this one: |dY/dx| times the RMS of dy.

    The gradient itself is no measure: its terms' signs are random, and they may cancel.
    """

    def of_scalar(x: Tensor) -> Tensor:
        return peer.definition(*(given | {name: x}).values())

    x = given[name].detach()
    given = {other: tensor.detach() for other, tensor in given.items()}
    _, slope = torch.func.jvp(of_scalar, (x,), (torch.ones_like(x),))
    return slope.norm() * _rms(dy)


def check(peer: Peer, call: Operator, inputs: Inputs, shape: Shape) -> dict[str, float]:
    """The errors of `relative_errors`. Raises RunError where one is above 0.02."""
    errors = relative_errors(peer, call, inputs)
    for name, error in errors.items():
        if not error <= _SAME_FUNCTION:
            raise RunError(
                f"{peer.name} on {shape.dimensions}: {name} is off its definition by {error:.2g} "
                "of its RMS"
            )
    return errors
