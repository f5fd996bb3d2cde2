"""Chunks, tile shapes and warps of every pass, by architecture; not yet tuned."""

from dataclasses import dataclass, replace

import torch

from kernels.common import architecture


@dataclass(frozen=True)
class Launch:
    """One pass over chunks, by block_d relation channels and block_v information channels."""

    block_d: int
    block_v: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Scan:
    """The scan over segments: `block` elements of a state a program, `steps` loads in flight."""

    block: int
    steps: int
    num_warps: int


@dataclass(frozen=True)
class Launches:
    """The passes of one architecture and element size, up to a padded head width of `width`.

    chunk: tokens, a power of two. precision: of products of two FP32 tiles. weak_output and
    weak_gradients: the kernels for chunks of weak retention, or both None where every chunk takes
    the others; they and states then hold all relation channels, block_d = width. programs: so
    many keep the device busy, and segments grow longer only where as many are left.
    """

    width: int
    chunk: int
    precision: str
    states: Launch
    output: Launch
    information: Launch
    coordinates: Launch
    weak_output: Launch | None = None
    weak_gradients: Launch | None = None
    scan: Scan = Scan(128, 8, 1)
    programs: int = 1024

    def __post_init__(self):
        weak = [launch for launch in (self.weak_output, self.weak_gradients) if launch is not None]
        if weak and (len(weak) < 2 or any(x.block_d != self.width for x in (*weak, self.states))):
            raise ValueError(
                f"width {self.width}: give both weak passes or none, and with them block_d ="
                f" {self.width} in weak_output, weak_gradients and states"
            )

    @property
    def levels(self) -> int:
        return self.chunk.bit_length() - 1

    def cut(self, width: int) -> "Launches":
        """The same for a narrower head, without tiles that are wider than it."""

        def narrow(launch: Launch | None) -> Launch | None:
            if launch is None:
                return None
            return replace(
                launch, block_d=min(launch.block_d, width), block_v=min(launch.block_v, width)
            )

        return replace(
            self,
            width=width,
            states=narrow(self.states),
            output=narrow(self.output),
            information=narrow(self.information),
            coordinates=narrow(self.coordinates),
            weak_output=narrow(self.weak_output),
            weak_gradients=narrow(self.weak_gradients),
        )


@dataclass(frozen=True)
class Segments:
    """How a sequence is split: `count` segments of at most `length` chunks, `chunks` in all.

    whole: whether the last chunk is full.
    """

    chunks: int
    length: int
    count: int
    whole: bool


HOPPER, SMALL = "sm_90", "sm_120"

LONGEST_SEGMENT = 16


def split_chunks(heads: int, T: int, launches: Launches) -> Segments:
    """The segments of `heads` sequences of T tokens each."""
    chunks = (T + launches.chunk - 1) // launches.chunk
    length = 1
    while length < LONGEST_SEGMENT and heads * chunks >= 2 * length * launches.programs:
        length *= 2
    return Segments(chunks, length, (chunks + length - 1) // length, T % launches.chunk == 0)


def _entry(widest: int, chunk: int, precision: str, *passes: tuple[int, int, int, int]) -> Launches:
    return Launches(widest, chunk, precision, *(Launch(*numbers) for numbers in passes))


# FP32 products run on the ordinary cores, whose operands fill the registers: small tiles.
_FP32 = _entry(128, 32, "ieee", *[(32, 32, 4, 1)] * 4)
_SMALL = [(64, 64, 8, 1), *[(32, 32, 8, 1)] * 3]

# By architecture and bytes an element: the passes states, output, information and coordinates, and
# where weak chunks have kernels of their own, theirs. The first entry that is wide enough is taken.
LAUNCHES: dict[tuple[str, int], tuple[Launches, ...]] = {
    (HOPPER, 2): (
        replace(
            _entry(64, 64, "bf16x3", (64, 64, 4, 2), (64, 64, 4, 1), *[(32, 32, 4, 1)] * 2),
            weak_output=Launch(64, 64, 4, 1),
            weak_gradients=Launch(64, 64, 4, 1),
            programs=512,
        ),
        _entry(128, 64, "bf16x3", (64, 64, 4, 1), (32, 64, 4, 1), *[(32, 32, 4, 1)] * 2),
    ),
    (SMALL, 2): (_entry(64, 64, "bf16x3", *_SMALL), _entry(128, 64, "bf16x3", *_SMALL)),
    (HOPPER, 4): (_FP32,),
    (SMALL, 4): (_FP32,),
}
INTERPRETED = replace(
    _entry(128, 16, "ieee", (128, 16, 1, 1), *[(16, 16, 1, 1)] * 3),
    weak_output=Launch(128, 16, 1, 1),
    weak_gradients=Launch(128, 16, 1, 1),
    scan=Scan(1024, 2, 1),
    programs=4,
)


def select_launches(device: torch.device, element_size: int, head_dim: int) -> Launches:
    """The entry for a device, cut to the head width.

    Every GPU but sm_90 takes sm_120's, the smallest shared memory.
    """
    width = max(16, 1 << (head_dim - 1).bit_length())
    if device.type == "cpu":
        return INTERPRETED.cut(width)
    name = HOPPER if architecture(device) == HOPPER else SMALL
    entries = LAUNCHES[name, element_size]
    return next(entry for entry in entries if entry.width >= width).cut(width)
