"""Where Self is used: Self flow by token, and NLL where one layer lacks one of its parts.

Tokens are sorted by how frequent they are in the validation split (bands of a quarter of its tokens
each, the most frequent first), by position (the last band is the second half of the window, the one
before it the quarter before, and so on) and by whether they stood in the window before.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from relation.data.mask import DocumentMask
from relation.nn import Decoder
from relation.probes.flows import flows_read
from relation.probes.parts import parts_of, without
from relation.train.loss import summed_nll

BANDS = 4
_TOKENS_AT_A_TIME = 8192


def first_windows(tokens: np.ndarray, length: int, count: int) -> Tensor:
    """The first full windows of a split with their next token, (n, length + 1) int64.

    tokens: (N,) ids; `count` windows, or as many as there are.
    """
    full = min(count, (len(tokens) - 1) // length)
    rows = [tokens[n * length : (n + 1) * length + 1] for n in range(full)]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def frequency_bands(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """The band of every id, (V,) int64: 0 for the ids that make the most frequent quarter."""
    counts = np.bincount(tokens, minlength=vocabulary)
    order = np.argsort(-counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    bands = np.empty(vocabulary, np.int64)
    bands[order] = np.minimum(BANDS * before // max(1, len(tokens)), BANDS - 1)
    return bands


def position_bands(length: int) -> Tensor:
    """The band of every position, (T,) int64: halves, the last one undivided."""
    share = (torch.arange(length) + 0.5) / length
    return (BANDS + share.log2().floor().long()).clamp(min=0)


def repeats(windows: Tensor) -> Tensor:
    """Whether each token of windows (n, T) stood in its window before, (n, T) int64, 0 or 1."""
    order = windows.argsort(dim=1, stable=True)
    ordered = windows.gather(1, order)
    again = torch.zeros_like(windows)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.empty_like(windows).scatter_(1, order, again)


def token_groups(windows: Tensor, bands: np.ndarray) -> dict[str, Tensor]:
    """The band of every token of windows (n, T) in each way of sorting them, (n, T) int64."""
    return {
        "frequency": torch.from_numpy(bands)[windows],
        "position": position_bands(windows.shape[1]).expand_as(windows),
        "occurrence": repeats(windows),
    }


@torch.no_grad()
def use_rows(
    model: Decoder, windows: Tensor, bands: np.ndarray, mask: DocumentMask | None = None
) -> Iterator[dict]:
    """Rows of SELF_USE after its key, of windows (n, T + 1) int64 on a CPU.

    bands: of `frequency_bands`; mask: that of the model's training. Layers of Linear Relation have
    no Self flow; their Self is what `relation.probes.parts` says.
    """
    batches = _batches(model, windows, mask)
    count = windows[:, 1:].numel()

    def nll(layer: int | None, part: str | None) -> dict:
        value = sum(summed_nll(model, *batch).double() for batch in batches).item() / count
        return _row(layer, "nll", part, None, count, value)

    flows: dict[int, list[Tensor]] = {}

    def keep(layer: int, flow: Tensor) -> None:
        """Each token's Self flow, mean over heads, (B, T) FP64."""
        own = flow.diagonal(dim1=-2, dim2=-1).double().mean(1).cpu()
        flows.setdefault(layer, []).append(own)

    with flows_read(model, keep):
        whole = nll(None, None)
    yield whole
    groups = token_groups(windows[:, :-1], bands)
    for layer, parts in flows.items():
        own = torch.cat(parts)
        for group, band_of in groups.items():
            for band in band_of.unique().tolist():
                kept = own[band_of == band]
                value = kept.mean().item()
                yield _row(layer, "self_flow", group, band, kept.numel(), value)
    for layer, block in enumerate(model.blocks):
        for part in parts_of(block.mixer):
            with without(block.mixer, part):
                found = nll(layer, part)
            yield found


def _batches(model: Decoder, windows: Tensor, mask: DocumentMask | None) -> list[tuple]:
    device, length = model.embedding.weight.device, windows.shape[1] - 1
    batches = []
    for rows in windows.split(max(1, _TOKENS_AT_A_TIME // length)):
        inputs, targets = rows[:, :-1].to(device), rows[:, 1:].to(device)
        batches.append((inputs, targets, None if mask is None else mask.documents(inputs)))
    return batches


def _row(
    layer: int | None, metric: str, group: str | None, band: int | None, count: int, value: float
) -> dict:
    names = ("layer", "metric", "group", "band", "count", "value")
    return dict(zip(names, (layer, metric, group, band, count, value), strict=True))
