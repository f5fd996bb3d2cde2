"""Launch the passes, forward and backward, and allocate their memory."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from relation.kernels.common import cdiv, empty_tokens, next_power_of_2, padded_width, start
from relation.kernels.linear_relation.general import (
    coordinates_kernel,
    information_kernel,
    output_kernel,
)
from relation.kernels.linear_relation.launches import Launch, Launches, select_launches
from relation.kernels.linear_relation.states import (
    chunk_states_kernel,
    prepare_kernel,
    segment_scan_kernel,
)
from relation.kernels.linear_relation.tiles import Between, Constants, Prepared, States, strided
from relation.kernels.linear_relation.weak import (
    weak_coordinates_kernel,
    weak_gradients_kernel,
    weak_information_kernel,
    weak_output_kernel,
)

LONGEST_SEGMENT = 16
# y, C_T, then the tensors saved for the backward pass: `Prepared` (4) and `States` (3).
Results = tuple[(Tensor,) * 9]
Gradients = tuple[(Tensor,) * 5]


class Call(NamedTuple):
    """The plan of a call, derived from the shapes of p1 and p2.

    Each head has `chunks`, cut into `segments` of at most `segment_chunks`. group: H / p2's heads.
    """

    launches: Launches
    shape: tuple[int, int, int, int]
    group: int
    chunks: int
    segment_chunks: int
    segments: int

    @classmethod
    def of(cls, p1: Tensor, p2: Tensor) -> "Call":
        B, H, T, D = p1.shape
        launches = select_launches(p1.device, p1.element_size(), D)
        chunks = cdiv(T, launches.chunk)
        length = 1  # of a segment, in chunks; longer only if enough programs remain
        while length < LONGEST_SEGMENT and B * H * chunks >= 2 * length * launches.programs:
            length *= 2
        return cls(launches, (B, H, T, D), H // p2.shape[1], chunks, length, cdiv(chunks, length))

    @property
    def heads(self) -> int:
        return self.shape[0] * self.shape[1]

    def empty(self, like: Tensor, *shapes: tuple[int, ...], dtype=torch.float32) -> list[Tensor]:
        """Return an uninitialised tensor (B, H, *shape) for each shape."""
        B, H, _, _ = self.shape
        return [like.new_empty(B, H, *shape, dtype=dtype) for shape in shapes]

    def empty_states(self, like: Tensor) -> States:
        """Return memory for `States`. `within` is empty if every segment is one chunk."""
        D, inner = self.shape[3], self.chunks if self.segment_chunks > 1 else 0
        return States(*self.empty(like, (inner, D, D), (inner, D), (self.segments, D, D)))

    def empty_kept(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return memory for what the forward pass saves: `Prepared`, then `States`."""
        _, _, T, D = self.shape
        wide = torch.float64 if self.launches.ieee else torch.float32
        (selves,) = self.empty(like, (3, T))
        (weak,) = self.empty(like, (self.chunks,), dtype=torch.uint8)
        prepared = selves, weak, *self.empty(like, (T, D), (self.chunks, 2, D), dtype=wide)
        return *prepared, *self.empty_states(like)

    def share_out(self, launch: Launch) -> tuple[int, int]:
        """Return how many programs of `general` start, and the most chunks per program."""
        all_chunks = self.heads * self.chunks
        share = next_power_of_2(cdiv(all_chunks, launch.programs))
        return min(all_chunks, launch.programs), share

    def options(self, launch: Launch, *tensors: Tensor) -> dict[str, object]:
        """Return a launch's keywords: K and Triton's options. tensors: its strided arguments."""
        (_, _, T, D), entry, widest = self.shape, self.launches, padded_width(self.shape[3])
        # A tile is never wider than the padded head.
        block_d, block_v, block_s = (
            min(block, widest) for block in (launch.block_d, launch.block_v, entry.output.block_d)
        )
        constants = Constants(
            IEEE=entry.ieee,
            D=D,
            GROUP=self.group,
            # Results are stored as (B, T, H, D), so D divides their strides.
            ALIGNED=math.gcd(16, D, *(stride for x in tensors for stride in x.stride()[:2])),
            CHUNK=entry.chunk,
            WHOLE=T % entry.chunk == 0,
            BLOCK_D=block_d,
            BLOCK_V=block_v,
            BLOCK_S=block_s,
            SHARE=self.share_out(launch)[1] if launch.programs else 1,
            LEVELS=entry.chunk.bit_length() - 1,
        )
        capped = {} if launch.registers is None else {"maxnreg": launch.registers}
        warps = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        return {"K": constants} | warps | capped

    def run(
        self, kernel, launch: Launch | None, tensors: tuple[Tensor, ...], *given,
        blocked: bool = False, **constants,
    ) -> None:  # fmt: skip
        """Start a pass; does nothing if launch is None.

        tensors: (B, H, T, D), any strides. given: the kernel's other arguments. The grid has one
        program per head and chunk, or `launch.programs`; blocked adds blocks of relation channels.
        """
        if launch is None:
            return
        options = self.options(launch, *tensors)
        grid = [self.share_out(launch)[0]] if launch.programs else [self.heads, self.chunks]
        if blocked:
            grid.insert(1, cdiv(self.shape[3], options["K"].BLOCK_D))
        start(kernel, tuple(grid), *map(strided, tensors), *given, **constants, **options)


def carry_states(
    call: Call, p1: Tensor, p2: Tensor, value: Tensor, prepared: Prepared, initial: Tensor | None,
    met: States, *, backward: bool,
) -> Tensor:  # fmt: skip
    """Fill `met` with every chunk's incoming state; return the state after the last chunk.

    Forward: value is info, initial is C_0, the result is C_T. Backward, from the last chunk to the
    first: value is dY, initial is dC_T, the result is dC_0. initial None means zeros.
    """
    (B, H, T, D), (block, steps) = call.shape, call.launches.scan
    options = call.options(call.launches.states, p1, p2, value)
    tiles = cdiv(D, options["K"].BLOCK_D) * cdiv(D, options["K"].BLOCK_V)
    # What each segment adds to the state; the state after all of them.
    added, final = torch.empty_like(met.entry), met.entry.new_empty(B, H, D, D)
    (added_log_decay,) = call.empty(final, (call.segments, D))
    start(
        chunk_states_kernel, (B * H, call.segments, tiles),
        *map(strided, (p1, p2, value)), prepared, met.within, met.log_decay, added,
        added_log_decay, H, T, call.chunks, call.segment_chunks, BACKWARD=backward, **options,
    )  # fmt: skip
    start(
        segment_scan_kernel, (B * H, cdiv(D * D, block)),
        added, added_log_decay, added if initial is None else initial.contiguous(), met.entry,
        final, call.segments, BACKWARD=backward, HAS_INITIAL=initial is not None, D=D, BLOCK=block,
        # A step past the last segment costs time too.
        STEPS=min(steps, next_power_of_2(call.segments)), num_warps=1,
    )  # fmt: skip
    return final


def launch_forward(
    p1: Tensor, p2: Tensor, info: Tensor, log_retention: Tensor, state: Tensor | None, tau: float
) -> Results:
    """Return y (B, H, T, D) in info's dtype, C_T (B, H, D, D) FP32, and `empty_kept`, filled."""
    call = Call.of(p1, p2)
    (_, H, T, D), launches, kept = call.shape, call.launches, call.empty_kept(p1)
    prepared, met, y = Prepared(*kept[:4]), States(*kept[4:]), empty_tokens(info, H)
    chunks, segments = call.chunks, (call.segment_chunks, call.segments)
    with torch.cuda.device_of(p1):
        call.run(
            prepare_kernel, launches.prepare, (p1, p2, log_retention), prepared, H, T,
            1 / (tau * D**0.5), chunks, SEES_WEAK=launches.weak_output is not None,
        )  # fmt: skip
        final = carry_states(call, p1, p2, info, prepared, state, met, backward=False)
        tensors, given = (p1, p2, info, y), (prepared, met, H, T, chunks)
        call.run(weak_output_kernel, launches.weak_output, tensors, *given, *segments)
        all_chunks = call.heads * chunks
        call.run(output_kernel, launches.output, tensors, *given, all_chunks, *segments)
    return y, final, *kept


def launch_backward(
    dy: Tensor, dfinal: Tensor | None, p1: Tensor, p2: Tensor, info: Tensor, log_retention: Tensor,
    kept: list[Tensor], tau: float,
) -> Gradients:  # fmt: skip
    """Run the backward passes. kept: the tensors that `launch_forward` saved.

    Returns the gradients of p1, p2, info and log_retention, each in its input's dtype, and dC_0
    (B, H, D, D), FP32.
    """
    call = Call.of(p1, p2)
    (_, H, T, D), launches = call.shape, call.launches
    prepared, met, dmet = Prepared(*kept[:4]), States(*kept[4:]), call.empty_states(p1)
    square = call.chunks, launches.chunk, launches.chunk
    between = Between(*call.empty(p1, (T,), (T,), square, (T, D), (T, D), (call.chunks, D)))
    # Each head of p1 has its own dp2 and dinfo, summed over a group at the end: a chunk may be weak
    # in one head of a group and not in another, and then different kernels compute them.
    dp1, dp2, dinfo, dg = (empty_tokens(x, H) for x in (p1, p2, info, log_retention))
    scale, chunks, all_chunks = 1 / (tau * D**0.5), call.chunks, call.heads * call.chunks
    segments = call.segment_chunks, call.segments
    with torch.cuda.device_of(p1):
        dinitial = carry_states(call, p1, p2, dy, prepared, dfinal, dmet, backward=True)
        # Weak chunks first, and then all others.
        call.run(
            weak_gradients_kernel, launches.weak_gradients, (p1, p2, info, dy),
            dp1, dp2, dinfo, dg, dp1.stride(), prepared, met, dmet, H, T, scale, chunks, *segments,
        )  # fmt: skip
        call.run(
            weak_information_kernel, launches.weak_information, (p1, p2, info, dy, dinfo),
            prepared, met, dmet, between, H, T, chunks, *segments,
        )  # fmt: skip
        call.run(
            weak_coordinates_kernel, launches.weak_coordinates, (p1, p2),
            dp1, dp2, dg, dp1.stride(), prepared, between, H, T, scale, chunks, blocked=True,
        )  # fmt: skip
        call.run(
            information_kernel, launches.information, (p1, p2, info, dy, dinfo),
            prepared, met, dmet, between, H, T, chunks, all_chunks, *segments,
        )  # fmt: skip
        call.run(
            coordinates_kernel, launches.coordinates, (p1, p2),
            dp1, dp2, dg, dp1.stride(), prepared, between, H, T, scale, chunks, all_chunks,
            blocked=True,
        )  # fmt: skip
    if call.group > 1:
        dp2, dinfo = (_sum_over_groups(x, p2.shape[1]) for x in (dp2, dinfo))
    return dp1, dp2, dinfo, dg, dinitial


def _sum_over_groups(gradient: Tensor, shared: int) -> Tensor:
    """Sum (B, H, T, D), stored as (B, T, H, D), over groups of H / shared neighbouring heads.

    PyTorch adds 16-bit numbers in FP32, in an order that depends only on the shape.
    """
    return gradient.transpose(1, 2).unflatten(2, (shared, -1)).sum(3).transpose(1, 2)
