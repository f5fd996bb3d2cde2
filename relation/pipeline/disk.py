"""The disk that a campaign's training takes, from the sizes of its models."""

from collections.abc import Iterable

from relation.variants import ABLATIONS, PAIRED

_GIB = 2**30
_STATE_COPIES = 3 * 2  # a resume state holds weights and two moments, and two states are kept


def stage_of(variant: str) -> str:
    """The stage of training that a variant's runs belong to."""
    if variant in PAIRED:
        return "paired runs"
    return "ablation runs" if variant in ABLATIONS else "other runs"


def disk_gib(parameters: Iterable[int]) -> float:
    """Every run's checkpoint and the two resume states of the largest run, in GiB.

    parameters: how many the model of each run has, at 4 bytes each.
    """
    sizes = [4 * count / _GIB for count in parameters]
    return sum(sizes) + _STATE_COPIES * max(sizes, default=0.0)


def training_gib(runs: Iterable[tuple[str, int]]) -> float:
    """The disk of all stages of training, added up.

    runs: the variant and the parameters of each.
    """
    stages: dict[str, list[int]] = {}
    for variant, count in runs:
        stages.setdefault(stage_of(variant), []).append(count)
    return sum(map(disk_gib, stages.values()))
