"""Invented pairs beyond the matrix, added to the records of a campaign."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pandas as pd
from test_report_records import HOSTILE, make_records

from report.judge.claims import judge_claims
from report.judge.claims.evidence import Evidence
from report.judge.claims.ledger import CLAIMS
from report.values.frames import CampaignRecords

# By seed: final NLL of MHA and of Relation, shares of the budget spared by Relation and by MHA
# against itself. 47 never reaches the target; 49 has no MHA run, 50 no run at all.
PAIRS = {
    45: (2.010, 2.000, 0.04, 0.01),
    46: (2.030, 1.990, 0.06, 0.02),
    47: (2.000, 2.020, math.nan, 0.03),
    48: (1.990, 1.980, 0.02, 0.00),
}
PLANNED = (45, 46, 47, 48, 49, 50)
Pair = tuple[float, float, float, float]


def _looks(runs: list[dict]) -> list[dict]:
    """Four looks: Relation is 0.4 below its seed's part of 0.01 at the first, 0.1 at the last."""
    return [
        {name: run[name] for name in ("scale", "variant", "seed")}
        | {"update": 12 * look, "tokens": 24_576 * look, "metric": "validation_nll", "alike": True}
        | {"value": 8.0 - look + (0.01 * (run["seed"] - 46) - 0.5 + 0.1 * look) * relation}
        | {"source": run["source"].replace("record", "probes")}
        for run in runs
        for look in (1, 2, 3, 4)
        for relation in [run["variant"] == "full"]
    ]


def with_further(
    records: CampaignRecords,
    pairs: Mapping[int, Pair] = PAIRS,
    planned: tuple[int, ...] = PLANNED,
    scale: str = "10M",
) -> CampaignRecords:
    """The records with these pairs; of the first seed that has none, Relation's run alone."""
    runs, missing = [], []
    for seed in planned:
        for place, variant in enumerate(("mha", "full")):
            key = {"scale": scale, "variant": variant, "seed": seed}
            alone = variant == "full" and seed == min(set(planned) - set(pairs), default=None)
            if seed not in pairs and not alone:
                reason = f"there is no {HOSTILE}/{variant}/{seed}"
                missing.append(
                    {"kind": "further run", **key, "status": "not run", "reason": reason}
                )
                continue
            nll = pairs[seed][place] if seed in pairs else 5.0
            source = f"runs/{scale}/{variant}/{seed}/record.parquet"
            runs.append(
                {**key, "final_nll": nll, "device": "cpu_0", "processes": 1, "source": source}
            )
    efficiency = [
        {"scale": scale, "seed": seed, "target": 2.5, "crossing_tokens": 9e4, "reduction": spared}
        | {"own_reduction": own, "end_gap": 0.0}
        for seed, (_, _, spared, own) in pairs.items()
    ]
    like = records.provenance.iloc[0].to_dict() if len(records.provenance) else {}
    provenance = [
        like
        | {name: run[name] for name in ("scale", "variant", "seed")}
        | {"source": run["source"].replace("record", file), "kind": f"further {kind}"}
        for run in runs
        for kind, file in (("run", "record"), ("log", "log"), ("probes", "probes"))
    ]
    return replace(
        records,
        page=records.page | {"further_seeds": {scale: list(planned)}},
        further_runs=pd.DataFrame(runs, columns=records.runs.columns),
        further_probes=pd.DataFrame(_looks(runs), columns=records.probes.columns),
        further_efficiency=pd.DataFrame(efficiency, columns=records.further_efficiency.columns),
        missing=pd.concat([records.missing, pd.DataFrame(missing)], ignore_index=True),
        provenance=pd.concat([records.provenance, pd.DataFrame(provenance)], ignore_index=True),
    )


@cache
def further_campaign() -> CampaignRecords:
    """The invented campaign with these pairs."""
    return with_further(make_records())


def evidence(records: CampaignRecords) -> list[Evidence]:
    """What the first three claims rest on, and what stands beside it."""
    return [row for claim in judge_claims(records, CLAIMS[:3]) for row in claim.evidence]
