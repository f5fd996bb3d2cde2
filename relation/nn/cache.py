"""The decode state, one cache per layer: the decode history state of the paper's Table 1.

A layer's cache is a `HistoryCache` (MHA and Full Relation) or a `LinearState` (Linear Relation).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from relation.errors import InputError
from relation.variants import LINEAR


class Cache:
    """Base of a layer's cache: the number of tokens read, and the `tensors` kept from them.

    length: tokens read by the longest row. lengths: tokens read by each row, (B,) int64, or None if
    all rows have read `length` tokens. `begin` sets `lengths` before the prompts are read.
    """

    def __init__(self):
        self.length = 0
        self.lengths: Tensor | None = None
        self.tensors: tuple[Tensor, ...] = ()

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The tensors that describe the tokens read so far; empty before the first block."""
        return self.tensors

    @property
    def nbytes(self) -> int:
        """Bytes of `states`, without memory allocated for later tokens."""
        return sum(state.nbytes for state in self.states)

    @property
    def uneven(self) -> bool:
        """Whether the next block begins at another position in each row."""
        return self.lengths is not None and self.length > 0

    def begin(self, lengths: Tensor | None) -> None:
        """Announce a prompt whose row b has lengths[b] tokens, (B,) int64; None: equal lengths."""
        if self.length:
            raise InputError(
                "prompts with lengths need an empty cache, and this cache has read "
                f"{self.length} tokens; start a new decode state"
            )
        self.lengths = None if lengths is None else torch.as_tensor(lengths)

    def places(self, tokens: int, device: torch.device) -> Tensor:
        """Positions of the next block's n tokens, (n,), or (B, n) if rows have unequal lengths."""
        block = torch.arange(tokens, device=device)
        return block + (self.lengths[:, None] if self.uneven else self.length)

    def _count(self, tokens: int) -> None:
        """Count a block of `tokens` per row. `begin` has already counted an unequal prompt."""
        if self.uneven:
            self.lengths = self.lengths + tokens
        self.length += tokens

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Set the number of tokens that each row has read, after a GPU counted them."""
        self.length = max(lengths)
        unequal = len(set(lengths)) > 1
        self.lengths = torch.tensor(lengths, device=self.tensors[0].device) if unequal else None

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows, (n,) int64, in this order, as beam search needs after each token."""
        with torch.inference_mode(False):  # as in `HistoryCache.reserve`
            self.tensors = tuple(tensor.index_select(0, rows) for tensor in self.tensors)
            if self.lengths is not None:
                self.lengths = self.lengths.index_select(0, rows)


class HistoryCache(Cache):
    """The history of an MHA or Full layer, O(T d): K and V, or p2 and the mixed information.

    From the first block on, `tensors` are two buffers, (B, H, capacity, D). A full buffer at least
    doubles its capacity.
    """

    def __init__(self, capacity: int = 256):
        super().__init__()
        self.capacity = capacity

    @property
    def states(self) -> tuple[Tensor, ...]:
        """Views of the two states, (B, H, T, D), where T is the length of the longest row."""
        return tuple(buffer[:, :, : self.length] for buffer in self.tensors)

    def visible(self, tokens: int) -> Tensor | None:
        """Which tokens the last block's n tokens see, bool (B, 1, n, T); None: the causal mask."""
        if self.lengths is None:
            return None
        device = self.lengths.device
        places = self.lengths[:, None] + torch.arange(-tokens, 0, device=device)  # (B, n)
        return torch.arange(self.length, device=device) <= places[:, None, :, None]  # (B, 1, n, T)

    def append(self, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        """Add a block's two states, each (B, H, n, D), and return `states` including them.

        Each row's block follows the row's last token. Raises InputError if the block's shape, dtype
        or device differ from the history's.
        """
        blocks, n = (first, second), first.shape[2]
        end = self.length + n  # of the longest row
        for block, history in zip(blocks, self.tensors, strict=False):  # none before the first
            kinds = [(*x.shape[:2], x.shape[3], x.dtype, x.device) for x in (block, history)]
            if kinds[0] != kinds[1]:
                raise InputError(
                    "the block has (B, H, D, dtype, device) = {} and the history {}; start a new "
                    "decode state".format(*kinds)
                )
        self.reserve(end, blocks)
        where = slice(None), slice(self.length, end)  # rows and positions
        if self.uneven:  # row b's block goes to the positions of row b
            places = self.places(n, first.device)  # (B, n)
            where = torch.arange(len(places), device=first.device)[:, None], places
        for buffer, block in zip(self.tensors, blocks, strict=True):
            buffer.transpose(1, 2)[where] = block.transpose(1, 2)  # (B, n, H, D)
        self._count(n)
        return self.states

    def reserve(self, tokens: int, blocks: tuple[Tensor, ...] = ()) -> None:
        """Allocate memory for at least `tokens` tokens, like that of the history or of `blocks`."""
        if self.tensors and tokens <= self.capacity:
            return
        capacity = max(tokens, 2 * self.capacity) if self.tensors else max(tokens, self.capacity)
        like = self.tensors or blocks
        # Zeros, because places after a shorter row's end are read too, with weight 0.
        with torch.inference_mode(False):  # so that later blocks may be read outside it
            buffers = tuple(x.new_zeros(*x.shape[:2], capacity, x.shape[3]) for x in like)
        for buffer, state in zip(buffers, self.states, strict=False):  # none before the first
            buffer[:, :, : self.length] = state
        self.capacity, self.tensors = capacity, buffers


class LinearState(Cache):
    """The state of a Linear Relation layer, O(d^2 / H): `tensors` holds C, (B, H, D, D)."""

    def padding(self, tokens: int) -> Tensor | None:
        """Which of the next block's n `tokens` are padding, (B, n) bool; None: none of them."""
        if self.lengths is None or self.uneven:
            return None
        return torch.arange(tokens, device=self.lengths.device) >= self.lengths[:, None]

    def replace(self, state: Tensor, tokens: int) -> None:
        """Replace C by the state after `tokens` more tokens."""
        self.tensors = (state,)
        self._count(tokens)


class DecodeState:
    """A model's decode state: one cache per layer of the layout."""

    def __init__(self, layout: str, capacity: int = 256):
        self.layout = layout
        self.layers = [LinearState() if x == LINEAR else HistoryCache(capacity) for x in layout]

    @property
    def length(self) -> int:
        """Tokens read by the longest row."""
        return self.layers[0].length

    @property
    def lengths(self) -> Tensor | None:
        """Tokens that each row has read, (B,) int64, or None if all are equal to `length`."""
        return self.layers[0].lengths

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' states."""
        return sum(layer.nbytes for layer in self.layers)

    def check(self, layout: str) -> None:
        """Raise InputError unless a model of this layout can continue from the state."""
        if self.layout != layout:
            raise InputError(
                f"the decode state has layers {self.layout} and the model {layout}; make a state "
                "with decode_state()"
            )
        if any(layer.length != self.length for layer in self.layers):
            raise InputError("the last block reached only some layers; start a new decode state")

    def begin(self, tokens: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Announce prompts (B, n) whose row b has lengths[b] tokens, then padding.

        Returns the block to read next, (B, longest), which has no column of only padding, and
        lengths, (B,) int64. Raises InputError for lengths that do not fit (also an empty prompt)
        and for a state that has read tokens.
        """
        batch, width = tokens.shape
        if len(lengths) != batch or not 1 <= min(lengths) <= max(lengths) <= width:
            raise InputError(
                f"tokens have shape {tuple(tokens.shape)} and lengths are {list(lengths)[:8]}; "
                f"give {batch} lengths from 1 to {width}"
            )
        counts = torch.as_tensor(lengths, dtype=torch.int64, device=tokens.device)
        for layer in self.layers:
            layer.begin(counts if len(set(lengths)) > 1 else None)
        return tokens[:, : max(lengths)], counts

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Call `Cache.set_lengths` in every layer."""
        for layer in self.layers:
            layer.set_lengths(lengths)

    def reorder(self, rows: Tensor) -> None:
        """Call `Cache.reorder` in every layer."""
        for layer in self.layers:
            layer.reorder(rows)
