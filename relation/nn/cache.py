"""What decoding keeps of the tokens read so far: Table 1's decode history state, layer by layer."""

from torch import Tensor

from relation.errors import InputError
from relation.variants import LINEAR


class HistoryCache:
    """The history of an MHA or Full Relation layer, O(T d): two states a token.

    They are K and V, or the relation coordinate p2 and the mixed information. Memory is taken for
    `capacity` tokens at the first block and at least doubled when that is full.
    """

    def __init__(self, capacity: int = 256):
        if capacity < 1:
            raise InputError(f"capacity is {capacity}; give at least 1 token")
        self.capacity, self.length = capacity, 0
        self._buffers: tuple[Tensor, ...] = ()

    @property
    def states(self) -> tuple[Tensor, ...]:
        """Views of the two states, (B, H, T, D) each; none before the first block."""
        return tuple(buffer[:, :, : self.length] for buffer in self._buffers)

    @property
    def nbytes(self) -> int:
        """Bytes that the history fills; the memory taken ahead does not count."""
        return sum(state.nbytes for state in self.states)

    def append(self, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        """Add a block's two states, (B, H, n, D) alike, and return `states` with them.

        Raises InputError for a block of another shape, dtype or device than the history's.
        """
        end = self.length + first.shape[2]
        if not self._buffers or end > self.capacity:
            self._grow(end, (first, second))
        for buffer, block in zip(self._buffers, (first, second), strict=True):
            kept = buffer[:, :, self.length : end]
            if (block.shape, block.dtype, block.device) != (kept.shape, kept.dtype, kept.device):
                raise InputError(
                    f"a block of {tuple(block.shape)} {block.dtype} on {block.device} does not "
                    f"continue a history of {tuple(buffer[:, :, : self.length].shape)} "
                    f"{buffer.dtype} on {buffer.device}; start a new decode state"
                )
        for buffer, block in zip(self._buffers, (first, second), strict=True):
            buffer[:, :, self.length : end] = block
        self.length = end
        return self.states

    def _grow(self, needed: int, blocks: tuple[Tensor, ...]) -> None:
        """Take memory for `needed` tokens, shaped as the history or else as the first block."""
        states = self.states or tuple(block[:, :, :0] for block in blocks)
        self.capacity = max(needed, 2 * self.capacity if self._buffers else self.capacity)
        self._buffers = tuple(s.new_empty(*s.shape[:2], self.capacity, s.shape[3]) for s in states)
        for buffer, state in zip(self._buffers, states, strict=True):
            buffer[:, :, : self.length] = state


class LinearState:
    """The state of a Linear Relation layer, O(d^2 / H): C, (B, H, D, D), however many tokens."""

    def __init__(self):
        self.length = 0
        self.state: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of C; none before the first token."""
        return 0 if self.state is None else self.state.nbytes

    def replace(self, state: Tensor, tokens: int) -> None:
        """Keep C (B, H, D, D) of `tokens` more tokens in place of the one before."""
        self.state = state
        self.length += tokens


class DecodeState:
    """A model's decode state: one cache a layer of its layout, and the tokens read so far."""

    def __init__(self, layout: str, capacity: int = 256):
        self.layout = layout
        self.layers = [
            LinearState() if letter == LINEAR else HistoryCache(capacity) for letter in layout
        ]

    @property
    def length(self) -> int:
        """Tokens read. Raises InputError where an exception left only some layers with a block."""
        lengths = {layer.length for layer in self.layers}
        if len(lengths) > 1:
            raise InputError("the last block reached only some layers; start a new decode state")
        return lengths.pop()

    @property
    def nbytes(self) -> int:
        """Bytes that the layers keep for the next token."""
        return sum(layer.nbytes for layer in self.layers)
