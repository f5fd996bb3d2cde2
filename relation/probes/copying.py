"""In-context copying: random tokens that stand twice, so that the second time can be known.

A block of different tokens is repeated once. Token t of the repetition stood `distance` tokens
earlier, and what followed it there follows here too. Of that a head carries information where its
flow from t goes to t - distance + 1, the token after the earlier one: its induction score is the
mass there, 1 for a lookup, near ln 2 / distance for a uniform flow, 0 for pure Self.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.nn import Decoder
from relation.probes.flows import flows_read

SHORTEST = 8  # tokens of the shortest block


def distances(context: int, vocabulary: int) -> list[int]:
    """Lengths of the blocks, tokens: from SHORTEST, doubled up to half of the context.

    A block has no token twice, and end-of-text is in none.
    """
    longest = min(context // 2, vocabulary - 1)
    return [SHORTEST << n for n in range(longest.bit_length()) if SHORTEST << n <= longest]


def repeated_blocks(count: int, distance: int, vocabulary: int, end: int) -> Tensor:
    """Blocks of `distance` different random tokens, each twice in a row, (count, 2 distance) int64.

    end: the id of end-of-text, which stands in none. The same arguments give the same tokens.
    """
    generator = torch.Generator().manual_seed(distance)
    drawn = [torch.randperm(vocabulary - 1, generator=generator)[:distance] for _ in range(count)]
    block = torch.stack(drawn)
    return (block + (block >= end)).repeat(1, 2)


def read_flow(flow: Tensor, distance: int) -> tuple[Tensor, Tensor]:
    """Of a flow (B, H, 2 distance, 2 distance): each head's induction score and its Self, (H,).

    Means over the tokens of the repetition but its last, whose next token stood nowhere. FP64.
    """
    own = flow.diagonal(dim1=-2, dim2=-1)[..., distance:-1]
    after = flow.diagonal(1 - distance, dim1=-2, dim2=-1)[..., 1:-1]
    return after.double().mean((0, 2)), own.double().mean((0, 2))


@torch.no_grad()
def copying_rows(
    model: Decoder, context: int, vocabulary: int, end: int, sequences: int
) -> Iterator[dict]:
    """Rows of COPYING after its key: what a model makes of repeated blocks at every distance.

    context: T of its training; as many blocks are read at a distance as fill `sequences` of T
    tokens. Flows are those of the model's own forward pass; Linear Relation has none.
    """
    device = model.embedding.weight.device
    for distance in distances(context, vocabulary):
        rows = context // (2 * distance)
        batches = repeated_blocks(rows * sequences, distance, vocabulary, end).split(rows)
        found: dict[tuple, list[Tensor]] = {}
        for tokens in batches:
            for key, value in _read(model, tokens.to(device), distance):
                found.setdefault(key, []).append(value)
        for (layer, head, metric), values in found.items():
            yield {
                "distance": distance,
                "layer": layer,
                "head": head,
                "metric": metric,
                "count": rows * sequences * (distance - 1),
                "value": torch.stack(values).mean().item(),
            }


def _read(model: Decoder, tokens: Tensor, distance: int) -> Iterator[tuple[tuple, Tensor]]:
    """Each metric of a batch by layer, head and name."""
    flows: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(layer: int, flow: Tensor) -> None:
        flows[layer] = read_flow(flow, distance)

    with flows_read(model, keep):
        logits = model(tokens)
    for layer, (induction, own) in flows.items():
        for head in range(len(induction)):
            yield (layer, head, "induction"), induction[head]
            yield (layer, head, "self"), own[head]
    for half, first in (("first", 0), ("repeat", distance)):
        said = logits[:, first : first + distance - 1].float()
        wanted = tokens[:, first + 1 : first + distance]
        nll = F.cross_entropy(said.flatten(0, 1), wanted.flatten())
        yield (None, None, f"{half}_nll"), nll.double()
        yield (None, None, f"{half}_accuracy"), (said.argmax(-1) == wanted).double().mean()
