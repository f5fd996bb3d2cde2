"""What is read off a run's model while it trains: lambda, angles and the metrics of its flow."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from relation.data.mask import DocumentMask
from relation.flow.diagnose import hash_of_sequences, sequences_of
from relation.flow.layers import read_layers
from relation.nn import Decoder
from relation.spec import DiagnosticsSpec
from relation.variants import LINEAR


def _parameter_rows(model: Decoder) -> list[dict]:
    """The learned lambda and angles of every layer that has them."""
    rows = []
    for layer, block in enumerate(model.blocks):
        learned = dict(block.mixer.named_parameters(recurse=False))
        if "lam" in learned:
            rows.append({"layer": layer, "part": None, "metric": "lambda"} | _value(learned["lam"]))
        for part, angle in enumerate(learned.get("theta", ())):
            rows.append({"layer": layer, "part": part, "metric": "theta"} | _value(angle))
    return rows


def _value(parameter: torch.Tensor) -> dict[str, float]:
    return {"value": parameter.item()}


@dataclass(frozen=True)
class FlowProbe:
    """Reads what `spec` samples of `data`, the run's prepared corpus of so large a vocabulary.

    code: hash of the probe's code.
    A model with Linear layers has no flow to read: of it only lambda and the angles are taken.
    """

    spec: DiagnosticsSpec
    times: int
    data: Path
    vocabulary: int
    code: str = "unknown"

    @cached_property
    def _sequences(self) -> torch.Tensor:
        return sequences_of(self.spec, self.data, self.vocabulary)

    def look(self, model: Decoder) -> list[dict]:
        """Rows of PROBES from `layer` on; a metric's value is its mean over heads and sequences."""
        rows = _parameter_rows(model)
        if LINEAR in model.config.layout:
            return rows
        sequences, spec = self._sequences.to(model.embedding.weight.device), self.spec
        mask = DocumentMask.of(spec.document_mask, self.data)
        for layer in read_layers(model, sequences, spec.flow_length, spec.rank_length, mask):
            rows += [
                {"layer": layer.index, "part": None, "metric": name, "value": values.mean().item()}
                for reading in layer.readings
                for name, values in reading.values.items()
            ]
        return rows

    def origin(self) -> dict[str, str | int]:
        """The hashes of the probe's own code, its sampling and the sequences it reads; its times.

        Raises InputError where the validation split will not do.
        """
        return {
            "probe_code_hash": self.code,
            "probe_config_hash": self.spec.config_hash,
            "sequences_hash": hash_of_sequences(self._sequences),
            "probe_times": self.times,
        }
