"""What a value has in common with the paper's: models, corpora, devices, by its records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report.values.frames import CampaignRecords
from report.values.likeness import Likeness

PAPER_GPU = "RTX 5090"
PAPER_DEVICE = f"NVIDIA {PAPER_GPU}"
# Kinds of records that rest on how a checkpoint was diagnosed, and on a training run's budget.
DIAGNOSES = frozenset(("diagnostics", "curves", "maps"))
TRAINED = DIAGNOSES | {"run", "log", "probes"}


@dataclass(frozen=True)
class Setting:
    """What one value has in common with the paper.

    other_models: why the models, or what was read off them, are not the paper's; empty where they
    are. other_corpora: the same of the texts. devices: names of the devices behind the value.
    """

    other_models: str
    other_corpora: str
    devices: tuple[str, ...]

    def lacks(self, need: str) -> str | None:
        """Why what needs the paper's corpora, its GPU or any CUDA GPU cannot be judged, or None."""
        where = ", ".join(self.devices) or "an unknown device"
        if need == "data":
            return self.other_corpora or None
        if need == "gpu":
            same = self.devices and all(PAPER_GPU in device for device in self.devices)
            return None if same else f"measured on {where}, the paper's on an {PAPER_GPU}"
        on_cpu = not self.devices or any("cpu" in device.lower() for device in self.devices)
        return f"measured on {where}, not on a GPU" if on_cpu else None


def other_device(page: Mapping[str, Any], devices: Sequence[str]) -> str | None:
    """What a systems table says of its devices, which matter to it where the corpora do not.

    Empty where they are the paper's, or there is none yet; None where the models are others
    already, which the campaign's own words tell.
    """
    likeness = Likeness(page)
    if likeness.other_models(likeness.scales, budget=False):
        return None
    setting = Setting("", "", tuple(devices))
    if not devices or setting.lacks("gpu") is None:
        return ""
    if setting.lacks("cuda"):
        return "No GPU: ratios are not judged, nor are rates and memory."
    return "Another GPU than the paper’s: rates and memory are not judged; ratios are."


class Settings:
    """The setting of any of a campaign's values, by the records that it rests on."""

    def __init__(self, records: CampaignRecords) -> None:
        self._likeness = Likeness(records.page)
        self._sources = records.provenance.set_index("source").to_dict("index")

    def of(self, sources: Sequence[str], scales: Sequence[str] = ()) -> Setting:
        """What a value that rests on these records has in common with the paper's.

        scales: those that it is of, where its records do not say; a record that belongs to no
        scale belongs to all.
        """
        found = [self._sources[source] for source in sources if source in self._sources]
        if not scales:
            named = dict.fromkeys(row["scale"] for row in found)
            scales = self._likeness.scales if not named or "" in named else tuple(named)
        # Without "further" or "converted", which say of which run.
        kinds = {row["kind"].rpartition(" ")[2] for row in found}
        others = self._likeness.other_models(scales, budget=bool(kinds & TRAINED))
        if not others and kinds & DIAGNOSES:
            others = self._likeness.other_sequences
        return Setting(
            other_models=others,
            other_corpora=self._likeness.other_corpora(scales),
            devices=tuple(dict.fromkeys(row["device"] for row in found)),
        )
