"""Which part of a training step a kernel belongs to, from how it is named and who launched it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relation.geometry import ModelConfig

OPERATOR, PROJECTIONS, FFN = "operator", "projections", "FFN"
NORM, ELEMENTWISE, CASTS, LOSS = "norm", "RoPE and sums", "casts", "loss"
OPTIMISER, CLIPPING, UNCLASSIFIED, IDLE = "optimiser", "clipping", "unclassified", "idle"
PARTS = (
    OPERATOR,
    PROJECTIONS,
    FFN,
    NORM,
    ELEMENTWISE,
    CASTS,
    LOSS,
    OPTIMISER,
    CLIPPING,
    UNCLASSIFIED,
    IDLE,
)

# The operator of the tables of RoPE.
_TABLES = "relation::cos_sin"
# The range that `relation.training.step` opens around clipping.
CLIPPING_RANGE = "clipping"

_LOSS_KERNEL = "cross_entropy_kernel"
_OPERATOR = re.compile(r"attention|TiledRelation|relation::(flash|linear)_|flash_(fwd|bwd)")
# What an operator is called in the name of a generated kernel that moves its inputs or results.
_NEAR_OPERATOR = re.compile(
    r"_scaled_dot_product_[a-z]+_attention(_for_cpu)?(_backward)?|(flash|linear)_relation(_backward)?"
)
_FACTORS = {
    "aten::mm": slice(0, 2),
    "aten::bmm": slice(0, 2),
    "aten::addmm": slice(1, 3),
    "aten::baddbmm": slice(1, 3),
}
_GENERATED = re.compile(r"^(?:triton|cpp)_(?:[a-z]+_)?fused_(.*?)_?\d*$")
_MOVES = re.compile(
    r"^(_to_copy|_unsafe_view|unsafe_view|view|t|clone|permute|transpose|copy|copy_|to|cat|split|_)+$"
)
_SCALED = re.compile(r"_to_copy_mul(_t)?")


@dataclass(frozen=True)
class Kernel:
    """One kernel that ran, or on a CPU one operation without those that it called.

    within: names of the operations and ranges that launched it, outermost first. dims: the input
    shapes of the innermost matrix product among them, None without one.
    """

    name: str
    seconds: float
    within: tuple[str, ...] = ()
    dims: tuple[tuple[int, ...], ...] | None = None


def factors(name: str) -> slice | None:
    """Which inputs of an operation are the two matrices it multiplies; None for another kind."""
    return _FACTORS.get(name)


class Classifier:
    """Sorts the kernels of one model's step into PARTS, for micro-batches of `tokens` tokens.

    What is launched inside the optimiser, inside clipping or by an attention or relation operator
    is theirs. A matrix product belongs to the weight whose shape it has. A kernel that Inductor
    generated carries the names of the operations fused into it, and goes to the first of loss,
    FFN, norm, RoPE and casts that claims one of them; so a residual sum that is computed by a
    norm's kernel counts as norm. One that does nothing but move what an operator reads or wrote is
    the operator's.
    """

    def __init__(self, config: ModelConfig, tokens: int):
        self.tokens = tokens
        d, d_ff, width = config.d_model, config.d_ff, config.head_dim
        # A pair that two parts share says nothing.
        owners: dict[tuple[int, ...], set[str]] = {}
        for part, shapes in (
            (LOSS, [(config.vocab_size, d)]),
            (FFN, [(d_ff, d), (2 * d_ff, d)]),
            (PROJECTIONS, [(d, d), (3 * d, d), (width, width)]),
        ):
            for shape in shapes:
                owners.setdefault(tuple(sorted(shape)), set()).add(part)
        self._weights = {pair: parts.pop() for pair, parts in owners.items() if len(parts) == 1}

    def part(self, kernel: Kernel) -> str:
        """The part of PARTS, IDLE apart, that a kernel belongs to."""
        for name in kernel.within:
            if name == CLIPPING_RANGE:
                return CLIPPING
            if name.startswith("Optimizer."):
                return OPTIMISER
        if any(_OPERATOR.search(name) for name in kernel.within):
            return OPERATOR
        if _TABLES in kernel.within:
            return ELEMENTWISE
        if kernel.dims is not None:
            return self._product(kernel.dims)
        generated = _GENERATED.match(kernel.name)
        if generated is not None:
            return _fused(generated[1])
        if _OPERATOR.search(kernel.name):
            return OPERATOR
        if "Adam" in kernel.name:
            return OPTIMISER
        if kernel.name == _LOSS_KERNEL:
            return LOSS
        return _eager(kernel.name)

    def _product(self, dims: Sequence[Sequence[int]]) -> str:
        """The part of a product (M, K) (K, N): two of M, K, N are a weight's, one the tokens."""
        (*_, m, k), (*_, n) = dims
        sides = [m, k, n]
        if self.tokens not in sides:
            return UNCLASSIFIED
        sides.remove(self.tokens)
        return self._weights.get(tuple(sorted(sides)), UNCLASSIFIED)


def _fused(operations: str) -> str:
    """The part of a generated kernel, from the names of the operations in it."""

    def has(*names: str) -> bool:
        return any(name in operations for name in names)

    if has("softmax", "nll_loss", "cross_entropy", "logsumexp"):
        return LOSS
    if has("silu"):
        return FFN
    if has("rsqrt", "rms_norm", "mean") or (has("pow") and has("sum")):
        return NORM
    if has("neg", "cos", "sin", "roll"):
        return ELEMENTWISE
    rest, near_operator = _NEAR_OPERATOR.subn("", operations)
    if near_operator and (not rest or _MOVES.match(rest)):
        return OPERATOR
    # A weight is rounded and, where a norm leaves it to its readers, scaled.
    if _MOVES.match(operations) or _SCALED.fullmatch(operations):
        return CASTS
    # What is left of reductions is the gradient of a norm's weight.
    return NORM if has("mul") and has("sum") else ELEMENTWISE


def _eager(name: str) -> str:
    """The part of an operation that was not compiled, on a CPU; no kernel is named so."""
    if not name.startswith("aten::"):
        return UNCLASSIFIED
    operation = name.removeprefix("aten::")
    if operation in ("add", "add_", "mul", "neg", "cat", "slice", "chunk", "split"):
        return ELEMENTWISE
    found = _fused(operation)
    return UNCLASSIFIED if found == ELEMENTWISE else found
