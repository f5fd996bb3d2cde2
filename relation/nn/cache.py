"""What decoding keeps of the tokens read so far: Table 1's decode history state, layer by layer.

A layer's cache is a `HistoryCache` (MHA and Full Relation) or a `LinearState` (Linear Relation).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from relation.errors import InputError, RunError
from relation.variants import LINEAR


class Cache:
    """How many tokens each row of a layer's cache has read; `tensors` are what it keeps of them.

    length: tokens read by the longest row. lengths: by each row, (B,) int64, or None: all alike.
    """

    def __init__(self):
        self.length = 0
        self.lengths: Tensor | None = None
        self.tensors: tuple[Tensor, ...] = ()

    @property
    def states(self) -> tuple[Tensor, ...]:
        """What the tokens read so far left; empty before the first."""
        return self.tensors

    @property
    def nbytes(self) -> int:
        """Bytes of the states; not of memory taken ahead."""
        return sum(state.nbytes for state in self.states)

    def begin(self, lengths: Tensor | None) -> None:
        """Expect a prompt of which row b has lengths[b] tokens, (B,) int64; None: all alike."""
        if self.length:
            raise InputError(
                f"prompts with lengths begin with an empty cache, and this one has read "
                f"{self.length} tokens; start a new decode state"
            )
        self.lengths = lengths

    def padding(self, tokens: int) -> Tensor | None:
        """Where the next block of so many tokens is padding, (B, n) bool; None: nowhere."""
        if self.lengths is None or self.length:
            return None
        return torch.arange(tokens, device=self.lengths.device) >= self.lengths[:, None]

    def places(self, tokens: int, device: torch.device) -> Tensor:
        """Where the next block's tokens stand, (n,), or (B, n) where rows have read unequally."""
        block = torch.arange(tokens, device=device)
        unequal = self.lengths is not None and self.length > 0
        return block + (self.lengths[:, None] if unequal else self.length)

    def _count(self, tokens: int) -> None:
        """Count a block of so many tokens a row; `begin` counted those of an unequal prompt."""
        if self.lengths is not None and self.length:
            self.lengths = self.lengths + tokens
        self.length += tokens

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Take over how many tokens each row has read, where a GPU counted them."""
        self.length = max(lengths)
        unequal = len(set(lengths)) > 1
        self.lengths = torch.tensor(lengths, device=self.tensors[0].device) if unequal else None

    def reorder(self, rows: Tensor) -> None:
        """Keep the rows (n,) int64 in that order, as beam search does after each token."""
        self.tensors = tuple(tensor.index_select(0, rows) for tensor in self.tensors)
        if self.lengths is not None:
            self.lengths = self.lengths.index_select(0, rows)


class HistoryCache(Cache):
    """The history of a layer with a flow, O(T d): K and V, or p2 and the mixed information.

    `tensors` are two buffers, (B, H, capacity, D), from the first block on; they at least double
    when they are full.
    """

    def __init__(self, capacity: int = 256):
        super().__init__()
        if capacity < 1:
            raise InputError(f"capacity is {capacity}; give at least 1 token")
        self.capacity = capacity

    @property
    def states(self) -> tuple[Tensor, ...]:
        """Views of the two states, (B, H, T, D), T the longest row's tokens."""
        return tuple(buffer[:, :, : self.length] for buffer in self.tensors)

    def visible(self, tokens: int) -> Tensor | None:
        """What the last block's tokens see, bool (B, 1, n, T); None: all up to themselves."""
        if self.lengths is None:
            return None
        device = self.lengths.device
        places = self.lengths[:, None] + torch.arange(-tokens, 0, device=device)  # (B, n)
        return torch.arange(self.length, device=device) <= places[:, None, :, None]  # (B, 1, n, T)

    def append(self, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        """Add a block's two states, (B, H, n, D) alike, and return `states` with them.

        Each row's block follows its own last token. Raises InputError for a block of another
        shape, dtype or device than the history's.
        """
        blocks, n = (first, second), first.shape[2]
        end = self.length + n  # of the longest row
        for block in blocks if self.tensors else ():
            pair = ((*x.shape[:2], x.shape[3], x.dtype, x.device) for x in (block, self.tensors[0]))
            names = ("batch size", "number of heads", "head width", "dtype", "device")
            for name, new, expected in zip(names, *pair, strict=True):
                if new != expected:
                    raise InputError(
                        f"the block's {name} is {new} and the history's {expected}; start a new "
                        "decode state"
                    )
        if not self.tensors or end > self.capacity:
            self.reserve(end, blocks)
        places = self.places(n, first.device)
        for buffer, block in zip(self.tensors, blocks, strict=True):
            if places.ndim == 1:
                buffer[:, :, self.length : end] = block
            else:  # (B, n): as (B, tokens, H, D), of which row b's tokens go to its own places
                rows = torch.arange(len(places), device=first.device)[:, None]
                buffer.transpose(1, 2)[rows, places] = block.transpose(1, 2)
        self._count(n)
        return self.states

    def reserve(self, tokens: int, blocks: tuple[Tensor, ...] = ()) -> None:
        """Take memory for `tokens` tokens at least, shaped as the history or else as `blocks`.

        Raises RunError where a GPU has too little.
        """
        if self.tensors and tokens <= self.capacity:
            return
        states = self.states or tuple(block[:, :, :0] for block in blocks)
        capacity = max(tokens, 2 * self.capacity if self.tensors else self.capacity)
        # Zeros: a shorter row's places past its end are read, and weigh nothing.
        try:
            buffers = tuple(s.new_zeros(*s.shape[:2], capacity, s.shape[3]) for s in states)
        except torch.OutOfMemoryError:
            raise RunError(
                f"the decode state is full at {self.length:,} tokens, and the GPU has no memory "
                f"for {capacity:,}; decode fewer rows or tokens"
            ) from None
        self.capacity, self.tensors = capacity, buffers
        for buffer, state in zip(self.tensors, states, strict=True):
            buffer[:, :, : state.shape[2]] = state


class LinearState(Cache):
    """The state of a Linear Relation layer, O(d^2 / H): `tensors` are C, (B, H, D, D)."""

    def replace(self, state: Tensor, tokens: int) -> None:
        """Keep C of `tokens` more tokens in place of the one before."""
        self.tensors = (state,)
        self._count(tokens)


class DecodeState:
    """A model's decode state: one cache a layer of its layout, and the tokens read so far."""

    def __init__(self, layout: str, capacity: int = 256):
        self.layout = layout
        self.layers = [LinearState() if x == LINEAR else HistoryCache(capacity) for x in layout]

    @property
    def length(self) -> int:
        """Tokens read by the longest row."""
        return self.layers[0].length

    @property
    def lengths(self) -> Tensor | None:
        """Tokens that each row has read, (B,) int64, or None: all alike."""
        return self.layers[0].lengths

    def places(self, tokens: int, device: torch.device) -> Tensor:
        """`Cache.places` of the next block."""
        return self.layers[0].places(tokens, device)

    @property
    def nbytes(self) -> int:
        """Bytes that the layers keep for the next token."""
        return sum(layer.nbytes for layer in self.layers)

    def check(self, layout: str) -> None:
        """Raise InputError unless a model of that layout can read on into this state."""
        if self.layout != layout:
            raise InputError(
                f"the decode state is of layers {self.layout} and the model of {layout}; start one "
                "with decode_state()"
            )
        if any(layer.length != self.length for layer in self.layers):
            raise InputError("the last block reached only some layers; start a new decode state")

    def begin(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """Expect prompts (B, n) of which row b has lengths[b] tokens of its own: (B,) int64.

        Raises InputError for lengths that do not fit, an empty prompt among them, and for a state
        that has read tokens.
        """
        batch, width = tokens.shape
        if len(lengths) != batch or not 1 <= min(lengths) <= max(lengths) <= width:
            raise InputError(
                f"tokens have shape {tuple(tokens.shape)} and lengths are {list(lengths)[:8]}; "
                f"give {batch} lengths from 1 to {width}"
            )
        counts = torch.tensor(lengths, device=tokens.device)
        for layer in self.layers:
            layer.begin(counts if len(set(lengths)) > 1 else None)
        return counts

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """`Cache.set_lengths` of every layer."""
        for layer in self.layers:
            layer.set_lengths(lengths)

    def reorder(self, rows: Tensor) -> None:
        """`Cache.reorder` of every layer."""
        for layer in self.layers:
            layer.reorder(rows)
