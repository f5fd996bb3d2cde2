"""Invented examinations of trained models, with an effect of a known size."""

from collections.abc import Iterable, Mapping
from itertools import product

import pandas as pd

from relation.store.layouts import COPYING, LENGTHS, SELF_USE

LAYOUTS = {"copying": COPYING, "lengths": LENGTHS, "self_use": SELF_USE}
# Training contexts, tokens.
T = {"10M": 1024, "30M": 2048}
MODELS = (*product(T, ("mha", "full")), ("30M", "hybrid"))
SEEDS = (42, 43, 44)
NOISE = {42: -0.002, 43: 0.001, 44: 0.002}


def key(scale: str, variant: str, seed: int, kind: str) -> dict:
    source = f"beyond/{scale}/{variant}/{seed}/{kind}.parquet"
    return {"scale": scale, "variant": variant, "seed": seed, "source": source}


def copying_rows(scale: str, variant: str, seed: int, gain: float) -> list[dict]:
    """Half of MHA's repetition is predicted, of another's `gain` more; its head 1 of layer 1."""
    own = key(scale, variant, seed, "copying")
    accuracy = 0.5 + (variant != "mha") * gain + NOISE[seed] * (1 if variant == "mha" else -1)
    model = {"first_nll": 8.0, "repeat_nll": 4.0, "repeat_accuracy": accuracy}
    rows = []
    for distance in (T[scale] // 8, T[scale] // 2):
        place = {**own, "distance": distance, "count": 100}
        for metric, value in model.items():
            rows.append({**place, "layer": None, "head": None, "metric": metric, "value": value})
        for layer, head in product(range(2 * (variant != "linear")), range(2)):
            score = 0.9 if (layer, head) == (1, 1) else 0.01
            where = {**place, "layer": layer, "head": head}
            rows.append({**where, "metric": "induction", "value": score})
    return rows


def length_rows(scale: str, variant: str, seed: int, cost: float) -> list[dict]:
    """From twice the context on, the long window costs `cost`; without the count twice as much."""
    own, step = key(scale, variant, seed, "lengths"), T[scale] // 4
    rows = []
    for first in range(0, 8 * T[scale], step):
        apart = 3.0 + first / 1e6 + NOISE[seed]
        whole = apart + cost * (first >= 2 * T[scale])
        readings = {"apart": apart, "whole": whole}
        if variant == "full":
            readings |= {"frozen": whole, "removed": whole + 2 * cost}
        rows += [
            {**own, "reading": reading, "first": first, "count": step, "nll": nll}
            for reading, nll in readings.items()
        ]
    return rows


def use_rows(scale: str, variant: str, seed: int, worth: float) -> list[dict]:
    """Self is worth `worth` in layer 0 and nothing later; tokens that come again keep half."""
    own = {**key(scale, variant, seed, "self_use"), "count": 100}
    nll = {"metric": "nll", "band": None}
    rows = [{**own, **nll, "layer": None, "group": None, "value": 3.0}]
    parts = {"self": worth, "exchange": 0.5, "count": 0.0, "mixing": 0.0}
    for layer, (part, rise) in product(range(3), parts.items()):
        if part in ("self", "exchange") or variant == "full":
            value = 3.0 + NOISE[seed] + (rise if layer == 0 or part == "exchange" else 0)
            rows.append({**own, **nll, "layer": layer, "group": part, "value": value})
    for layer, group, band in product(range(3), ("occurrence", "frequency"), range(4)):
        if group == "frequency" or band < 2:
            flow = 0.2 if (group, band) == ("occurrence", 0) else 0.1
            place = {"layer": layer, "metric": "self_flow", "group": group, "band": band}
            rows.append({**own, **place, "value": flow + NOISE[seed]})
    return rows


def examinations(
    effect: float, left_out: Mapping[str, Iterable[str]] = {}
) -> dict[str, pd.DataFrame]:
    """The three frames of MODELS and SEEDS; left_out: by frame, variants that have no row in it."""
    make = {"copying": copying_rows, "lengths": length_rows, "self_use": use_rows}
    return {
        kind: pd.DataFrame(
            row
            for (scale, variant), seed in product(MODELS, SEEDS)
            if variant not in left_out.get(kind, ())
            for row in make[kind](scale, variant, seed, effect)
        ).reindex(columns=[*layout.names, "source"])
        for kind, layout in LAYOUTS.items()
    }
