"""Runs from a trained MHA checkpoint; for Full Relation lambda is chosen on the run's windows."""

from pathlib import Path

import torch

from relation.data.mask import DocumentMask
from relation.data.windows import TrainingWindows
from relation.machine.devices import to_device
from relation.nn import Decoder
from relation.nn.conversion import fit_lambda, start_from_attention
from relation.spec import RunSpec
from relation.train.checkpoint import load_model
from relation.train.loss import summed_nll
from relation.train.step import autocast

# Enough to choose one number a layer.
WINDOWS = 32


class SearchWindows:
    """The first WINDOWS training windows of a run's order, as micro-batches on a device.

    spec: the run; windows: of its seed; mask: that of its training.
    """

    def __init__(
        self,
        spec: RunSpec,
        windows: TrainingWindows,
        device: torch.device,
        mask: DocumentMask | None = None,
    ):
        self.spec, self.device, self.mask = spec, device, mask
        ids = windows.window_ids(0, WINDOWS)
        self.tokens = WINDOWS * spec.context
        parts = (ids[first : first + spec.micro] for first in range(0, WINDOWS, spec.micro))
        self.batches = [
            tuple(to_device(x, device) for x in windows.batch(part, self.tokens, spec.micro))
            for part in parts
        ]

    def fit(self, model: Decoder) -> tuple[float, float]:
        """`fit_lambda` on these windows, in the run's precision; nat/token before and after."""
        return fit_lambda(model, self.batches, lambda batch: self._share(model, batch))

    @torch.no_grad()
    def nll(self, model: Decoder) -> float:
        """A model's mean loss on these windows, nat/token."""
        return sum(self._share(model, batch).item() for batch in self.batches)

    def _share(self, model: Decoder, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """What a batch adds to the mean loss over all windows."""
        inputs, targets = batch
        documents = None if self.mask is None else self.mask.documents(inputs)
        with autocast(self.device, self.spec.precision):
            return summed_nll(model, inputs, targets, documents) / self.tokens


def start_trained(
    model: Decoder,
    checkpoint: Path,
    spec: RunSpec,
    windows: TrainingWindows,
    mask: DocumentMask | None = None,
) -> None:
    """Give a run's model what a trained MHA checkpoint has.

    MHA goes on as it is; Full Relation with lambda as its search on the run's first windows finds
    it. Raises InputError for a damaged checkpoint or one of another shape.
    """
    device = model.embedding.weight.device
    attention = load_model(checkpoint, device)
    if model.config == attention.config:
        model.load_state_dict(attention.state_dict())
        return
    start_from_attention(model, attention)
    SearchWindows(spec, windows, device, mask).fit(model)
