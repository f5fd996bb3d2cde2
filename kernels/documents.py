"""Which tokens of a batch see each other: documents that are packed into rows, and padding."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import InputError


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents in a batch of B rows of T tokens. A document is a run of tokens in one row.

    A token sees only its own document. An operator computes the same as if each document were the
    only one in its row. Padding forms separate documents; nobody reads their results.

    starts, ends: (B, T) int32, where each token's document begins and ends (last + 1) in its row.
    offsets: (n + 1,) int32, where each of the n documents begins in the B x T tokens, row by row,
    then B T. Other libraries call it `cu_seqlens`.
    longest: the number of tokens of the longest document.

    `of`, `packed` and `padded` check their arguments and synchronise with the GPU. `bounded` does
    neither.
    """

    starts: Tensor
    ends: Tensor
    offsets: Tensor
    longest: int

    @classmethod
    def of(cls, ids: Tensor) -> "Documents":
        """Make documents from ids (B, T), integers: equal ids in a row are one document.

        Raises InputError for another rank or dtype, no tokens, or ids that decrease in a row.
        """
        _check_tensor("the numbers of documents", ids)
        if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool or 0 in ids.shape:
            raise InputError(
                f"documents are {ids.dtype} of shape {tuple(ids.shape)}; give an integer for each "
                "token, (B, T), with B and T at least 1"
            )
        # Converted to a signed dtype, because differences of unsigned numbers are never negative.
        change = ids.long().diff(dim=1)
        if (change < 0).any():
            row, t = (change < 0).nonzero()[0].tolist()
            raise InputError(
                f"documents decrease in row {row}: {ids[row, t]} at token {t} and "
                f"{ids[row, t + 1]} after it; number the documents of a row in increasing order"
            )
        return cls._of_first(F.pad(change != 0, (1, 0), value=True))

    @classmethod
    def packed(cls, offsets: Tensor) -> "Documents":
        """Make documents of one row from offsets (n + 1,), integers: where each begins, then T.

        Raises InputError unless the offsets begin at 0 and increase.
        """
        _check_tensor("the offsets", offsets)
        fits = offsets.ndim == 1 and len(offsets) > 1 and not offsets.is_floating_point()
        if not fits or offsets[0] != 0 or (offsets.long().diff() < 1).any():
            raise InputError(
                "the offsets of packed documents are (n + 1,) integers, begin at 0 and increase to "
                f"the number of tokens; these are {offsets.dtype} of shape {tuple(offsets.shape)}: "
                f"{offsets.flatten()[:8].tolist()}"
            )
        first = torch.zeros(1, int(offsets[-1]), dtype=torch.bool, device=offsets.device)
        first[0, offsets[:-1].long()] = True
        return cls._of_first(first)

    @classmethod
    def padded(cls, mask: Tensor) -> "Documents":
        """Make documents from a padding mask (B, T), bool or 0 and 1: the ones of a row are text.

        Padding may be on the left, on the right or on both sides. Raises InputError for another
        rank, an empty dimension, a row without text, or a row whose text is interrupted.
        """
        _check_tensor("the padding mask", mask)
        if mask.ndim != 2 or 0 in mask.shape:
            raise InputError(f"the padding mask has shape {tuple(mask.shape)}; give (B, T)")
        text = mask != 0
        if (text & (mask != 1)).any():
            raise InputError(
                "the padding mask holds other numbers than 0 and 1; for numbered documents use "
                "Documents.of(ids)"
            )
        before = F.pad(text[:, :-1], (1, 0))
        runs = (text & ~before).sum(1)  # pieces of text in each row
        if (runs != 1).any():
            row = int((runs != 1).nonzero()[0])
            pieces = "no text" if runs[row] == 0 else f"{int(runs[row])} pieces of text"
            raise InputError(f"row {row} of the padding mask has {pieces}; give each row one piece")
        change = F.pad(text[:, 1:] != text[:, :-1], (1, 0), value=True)
        return cls._of_first(change)

    @classmethod
    def bounded(cls, first: Tensor, most: int) -> "Documents":
        """Make at most `most` documents from first (B, T), bool, true where a document begins.

        Every row also begins a document. This does not wait for the GPU, and all shapes follow from
        B, T and `most`, so a CUDA graph can contain it. `offsets` has most + 1 entries, B T after
        the last document; `longest` is T. More than `most` documents are not detected.
        """
        length = first.shape[1]
        first = F.pad(first[:, 1:], (1, 0), value=True)
        number = first.flatten().cumsum(0)  # of each token's document, from 1
        wanted = torch.arange(1, most + 2, device=first.device)
        offsets = torch.searchsorted(number, wanted, out_int32=True)  # B T if no token has it
        return cls(*_bounds(first), offsets, length)

    @classmethod
    def _of_first(cls, first: Tensor) -> "Documents":
        """Make documents from first (B, T), bool, true where one begins and where a row begins."""
        begins = first.flatten().nonzero().flatten()
        end = begins.new_tensor([first.numel()])
        offsets = torch.cat((begins, end)).to(torch.int32)
        return cls(*_bounds(first), offsets, int(offsets.diff().max()))

    def to(self, device: torch.device | str) -> "Documents":
        """Copy the documents to a device."""
        tensors = (each.to(device) for each in (self.starts, self.ends, self.offsets))
        return Documents(*tensors, self.longest)

    @property
    def positions(self) -> Tensor:
        """The position of each token in its document, from 0: (B, T) int64."""
        return torch.arange(self.starts.shape[1], device=self.starts.device) - self.starts


def _check_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise InputError(f"{name} came as a {type(x).__name__}; give a tensor")


def check_documents(documents: Documents | None, x: Tensor) -> None:
    """Raise InputError unless documents is None or fits x (B, H, T, D): its B, T and device."""
    if documents is None:
        return
    if not isinstance(documents, Documents):
        raise InputError(
            f"documents are a {type(documents).__name__}; give Documents.of(ids), with an integer "
            "for each token, or Documents.padded(mask)"
        )
    given, needed = tuple(documents.starts.shape), (x.shape[0], x.shape[2])
    if given != needed:
        raise InputError(f"the documents are of (B, T) = {given} and the states of {needed}")
    if documents.starts.device != x.device:
        raise InputError(
            f"the documents lie on {documents.starts.device} and the states on {x.device}; "
            "move both to one device"
        )


def _bounds(first: Tensor) -> tuple[Tensor, Tensor]:
    """Return `starts` and `ends`; first: (B, T) bool, true where a row or a document begins."""
    length = first.shape[1]
    place = torch.arange(length, dtype=torch.int32, device=first.device)
    starts = torch.where(first, place, 0).cummax(dim=1).values
    ended = F.pad(first[:, 1:], (0, 1), value=True)
    ends = torch.where(ended, place + 1, length).flip(1).cummin(dim=1).values.flip(1)
    return starts, ends


def token_counts(documents: Documents | None, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return i of Section 3.1 in `dtype`: each token's position in its document, counted from 1.

    x: (B, H, T, D). Returns (T,) without documents and (B, 1, T) with documents.
    """
    if documents is None:
        return torch.arange(1, x.shape[2] + 1, device=x.device, dtype=dtype)
    return (documents.positions + 1).to(dtype)[:, None]


def unseen(documents: Documents | None, x: Tensor) -> Tensor:
    """Return a mask of what token i does not see: j > i, and j in another document.

    x: (B, H, T, D). Returns bool, (T, T) without documents and (B, 1, T, T) with documents.
    """
    length = x.shape[2]
    future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    if documents is None:
        return future
    j = torch.arange(length, device=x.device)
    return future | (j < documents.starts[:, None, :, None])


def forget_at_starts(
    documents: Documents | None, x: Tensor, log_retention: Tensor, state: Tensor | None
) -> Tensor:
    """Return log_retention (B, H, T, D), Linear Relation's g, with -inf where a document begins.

    So each document starts with an empty state. x: p1 (B, H, T, D). Raises InputError if documents
    do not fit x, or if a state of earlier tokens is given too.
    """
    if documents is None:
        return log_retention
    check_documents(documents, x)
    if state is not None:
        raise InputError("documents start with an empty state; give them or a state, not both")
    return log_retention.masked_fill((documents.positions == 0)[:, None, :, None], -torch.inf)
