"""Shared by the tests of the benchmarks: campaigns of the configuration, and a small case."""

import torch
from conftest import ROOT

from relation.config import Campaign, load_config, resolve
from relation.systems.bench.outcome import Case
from relation.systems.bench.peers import Shape

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPE = Shape("10M", 2, 2, 33, 16)
CASE = Case("flash", SHAPE, "fp32", "a machine", "tiled")


def campaign(name: str, **choices: str) -> Campaign:
    return resolve(load_config(ROOT / "config.yaml"), campaign=name, **choices)
