"""One token of a batch: a step of MHA, Full and Linear Relation and the products around them.

Every sum of a row is formed in an order that neither the batch nor the state's capacity changes,
so that equal rows get equal bits in any company. Nothing here waits for the GPU: where a row stands
is read from `lengths`, (B,) int32 on the device, the tokens before the new one; it must be below
the capacity, which the caller knows.

On Hopper and later a `chained` launch starts, and loads what it can, while the kernel ahead still
runs (chain.py). Pass it where kernels of this module alone have been launched since the last launch
that is not chained, and have written x, `projected`, `down`, `out` or `logits` alone.
"""

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels.checks import check_device
from relation.kernels.flash_relation import DTYPES, NARROWEST, WIDEST, why_unavailable

ADD, GATE = "add", "gate"
# CUDA refuses more than 65,535 pieces of a history, of 128 tokens each (`PIECE` in history.py).
LONGEST = 65_535 * 128


def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """The reason why these kernels cannot decode such a model on `device`, or None."""
    if dtype not in DTYPES:
        return f"the model computes in {dtype}, and the kernels in bfloat16, float16 or float32"
    if not NARROWEST <= head_dim <= WIDEST:
        return f"the head width is {head_dim}, and the kernels take {NARROWEST} to {WIDEST}"
    return why_unavailable(device)


def history_token(
    projected: Tensor,
    tables: tuple[Tensor, Tensor],
    history: tuple[Tensor, Tensor],
    lengths: Tensor,
    lam: Tensor | None = None,
    tau: float = 2.0,
    transport_self: bool = True,
    *,
    chained: bool = False,
) -> Tensor:
    """Full Relation of one token a row, or without lam attention; the history takes it in.

    projected: (B, 3, H, D), contiguous, BF16, FP16 or FP32: p1, p2 and mixed information, or Q, K
    and V, before RoPE. tables: RoPE's cosines and sines, (places, D) FP32. history: p2 and
    information of the tokens before, or K and V, (B, H, capacity, D) of projected's dtype,
    contiguous: row b has lengths[b], and its next place is written. lam: one FP32 number; tau: the
    Self temperature; transport_self: as `flash_relation`. Returns (B, H D) of projected's dtype.
    Raises InputError for shapes, dtypes or devices that do not fit.
    """
    B, _, H, D = _dimensions("projected", projected, 4)
    capacity = history[0].shape[2] if history[0].ndim == 4 else 0
    _expect("projected", projected, (B, 3, H, D), projected.dtype)
    for state in history:
        _expect("history", state, (B, H, capacity, D), projected.dtype)
    if capacity > LONGEST:
        raise InputError(f"the history holds {capacity:,} tokens; the kernel reads {LONGEST:,}")
    _expect_places(tables, lengths, B, D)
    given = [] if lam is None else [lam]
    check_device(projected, *tables, *history, lengths, *given)
    from relation.kernels.decoding.history import launch

    return launch(projected, tables, history, lengths, lam, float(tau), transport_self, chained)


def linear_token(
    projected: Tensor,
    down: Tensor,
    retention: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor],
    state: Tensor,
    lengths: Tensor,
    active: Tensor,
    tau: float = 2.0,
    *,
    chained: bool = False,
) -> Tensor:
    """Linear Relation of one token a row (Section 5.2); the state takes it in, in place.

    projected: (B, n >= 3, H, D), contiguous: p1 and p2 before RoPE and mixed information first.
    down: the retention path's inner projection, (B, H, D), its last two dimensions contiguous.
    retention: its second matrix a head, (H, D, D), in projected's dtype, and A_log and dt_bias,
    (H D,) FP32. state: C, (B, H, D, D) FP32, contiguous. active: (B,) int32; where 0, the row's
    state stays. tables, lengths, tau: as `history_token`. Returns (B, H D) of projected's dtype.
    Raises InputError for shapes, dtypes or devices that do not fit.
    """
    B, n, H, D = _dimensions("projected", projected, 4)
    if n < 3:
        raise InputError(f"projected has shape {tuple(projected.shape)}; give (B, 3 or more, H, D)")
    _expect("projected", projected, (B, n, H, D), projected.dtype)
    _expect_retention(retention, H, D, projected.dtype)
    _expect("state", state, (B, H, D, D), torch.float32)
    _expect("active", active, (B,), torch.int32)
    if tuple(down.shape) != (B, H, D) or down.stride()[1:] != (D, 1):
        raise InputError(f"down has shape {tuple(down.shape)}; give {(B, H, D)}, rows contiguous")
    _expect_places(tables, lengths, B, D)
    check_device(projected, down, *retention, *tables, state, lengths, active)
    from relation.kernels.decoding.linear import launch

    given = projected, down, retention, tables, state, lengths, active, float(tau)
    return launch(*given, chained)


def project(
    x: Tensor,
    weight: Tensor,
    eps: float | None = None,
    out: Tensor | None = None,
    then: str = "",
    *,
    chained: bool = False,
) -> Tensor:
    """x (B, K) through weight (N, K), both contiguous, as a decoder does for one token a row.

    weight: BF16, FP16 or FP32. With eps, x is FP32 and first divided by its root mean square; else
    it has weight's dtype. `then` says what becomes of x W^T: "add" adds it, rounded to weight's
    dtype, to `out`, (B, N) FP32, in place; "gate" gives silu(first half) times second half, of
    weight's dtype, (B, N / 2); "" gives it in `out`'s dtype, weight's where there is no `out`.
    Sums are FP32. Raises InputError for shapes, dtypes or devices that do not fit.
    """
    N, K = _dimensions("weight", weight, 2)
    B = x.shape[0]
    _expect("x", x, (B, K), weight.dtype if eps is None else torch.float32)
    _expect("weight", weight, (N, K), weight.dtype)
    columns = N // 2 if then == GATE else N
    if out is None:
        out = x.new_empty(B, columns, dtype=weight.dtype)
    _expect("out", out, (B, columns), torch.float32 if then == ADD else out.dtype)
    check_device(x, weight, out)
    from relation.kernels.decoding.dense import launch

    launch(x, weight, eps, out, then, chained)
    return out


def embed(ids: Tensor, embedding: Tensor, multiplier: float = 1.0) -> Tensor:
    """Rows of embedding (V, d) FP32 times a number, (B, d), of ids (B,) int64; contiguous all.

    A negative id, of logits that were not finite, takes the first row. Never chained: chains start
    here. Raises InputError for shapes, dtypes or devices that do not fit.
    """
    _expect("ids", ids, (ids.numel(),), torch.int64)
    _expect("embedding", embedding, _dimensions("embedding", embedding, 2), torch.float32)
    check_device(ids, embedding)
    from relation.kernels.decoding.dense import launch_embed

    return launch_embed(ids, embedding, float(multiplier))


def draw(
    logits: Tensor,
    temperature: Tensor | None,
    uniforms: Tensor,
    ids: Tensor,
    counts: tuple[Tensor, Tensor, Tensor] | None = None,
    stop: int | None = None,
    *,
    chained: bool = False,
) -> None:
    """Draw a token of each row of logits (B, V) FP32 into ids (B,) int64.

    -1 where logits are not finite. temperature: (1,) FP64, None for the likeliest token, of equal
    ones the first. uniforms: (n, B) FP64 in [0, 1), where the cumulative distribution is cut;
    their first row is taken. counts: what a token moves on, in place: the drawings so far (B,)
    int64, whose next is that row of uniforms modulo n; `lengths` and `active`, as in
    `linear_token`, the former by the latter. stop: an id; a row that draws it ends, and one that
    has ended draws it again. All contiguous. Raises InputError for shapes, dtypes or devices that
    do not fit.
    """
    B, _ = _dimensions("logits", logits, 2)
    rounds, _ = _dimensions("uniforms", uniforms, 2)
    _expect("logits", logits, tuple(logits.shape), torch.float32)
    _expect("uniforms", uniforms, (rounds, B), torch.float64)
    _expect("ids", ids, (B,), torch.int64)
    given = [logits, uniforms, ids, *(counts or ())]
    if temperature is not None:
        _expect("temperature", temperature, (1,), torch.float64)
        given.append(temperature)
    if counts is not None:
        kinds = ("drawings", torch.int64), ("lengths", torch.int32), ("active", torch.int32)
        for (name, kind), count in zip(kinds, counts, strict=True):
            _expect(name, count, (B,), kind)
    elif stop is not None:
        raise InputError("a row that draws the stop token ends: give counts with stop")
    check_device(*given)
    from relation.kernels.decoding.drawing import launch

    launch(logits, temperature, uniforms, ids, counts, stop, chained)


def _dimensions(name: str, x: Tensor, rank: int) -> tuple[int, ...]:
    if x.ndim != rank or 0 in x.shape:
        raise InputError(f"{name} has shape {tuple(x.shape)}; give {rank} dimensions, none empty")
    return tuple(x.shape)


def _expect(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise InputError unless x is contiguous, of that shape and dtype."""
    if (tuple(x.shape), x.dtype) != (shape, dtype) or not x.is_contiguous():
        how = "" if x.is_contiguous() else " not contiguous"
        raise InputError(
            f"{name} is {x.dtype} of shape {tuple(x.shape)}{how}; give {dtype} of {shape}, "
            "contiguous"
        )


def _expect_retention(
    retention: tuple[Tensor, Tensor, Tensor], heads: int, width: int, dtype: torch.dtype
) -> None:
    up, a_log, dt_bias = retention
    _expect("retention's matrices", up, (heads, width, width), dtype)
    for name, vector in (("A_log", a_log), ("dt_bias", dt_bias)):
        _expect(name, vector, (heads * width,), torch.float32)


def _expect_places(tables: tuple[Tensor, Tensor], lengths: Tensor, batch: int, width: int) -> None:
    places = tables[0].shape[0]
    for table in tables:
        _expect("a RoPE table", table, (places, width), torch.float32)
    _expect("lengths", lengths, (batch,), torch.int32)
