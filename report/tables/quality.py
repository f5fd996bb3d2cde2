"""Loss, paired differences and token efficiency: Tables 2, 11 and 12 (Section 6, Appendix C)."""

import math
from collections.abc import Iterable

import pandas as pd

from relation.variants import PAIRED
from report import stats
from report.data import KEY_IN_SETTING
from report.table import Cells, cell, means, sources, table, versus
from report.tables.configs import SHAPE, model_cells, tokens, vocabulary

# Numbers of a pair: columns of `efficiency` and of Table 12.
EFFICIENCY = ("target", "crossing", "reduction", "own_reduction", "end_gap")


def nll(runs: pd.DataFrame, **fields: str | pd.Series) -> pd.DataFrame:
    """Return final NLL as rows for `means`: row (default: scale), column (variant), seed, source.

    fields: other names or values of these, the same for all rows or one per row.
    """
    rows = runs.assign(row=runs["scale"], column=runs["variant"], value=runs["final_nll"])
    return rows.assign(**fields)[["row", "column", "seed", "value", "source"]]


def pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return final NLL of MHA and Relation and their difference.

    runs: of these two. One row per scale, column (mha, full, delta) and seed.
    """
    values = nll(runs)
    return pd.concat([values, versus(values, "full", "mha", "delta")], ignore_index=True)


def efficiency(runs: pd.DataFrame, losses: pd.DataFrame, window: float) -> pd.DataFrame:
    """Return, one row per pair, when Relation reaches its MHA run's final loss (Appendix B.4).

    window: fraction of the budget over which losses are smoothed. Columns: scale, seed, target
    (nat/token), crossing (tokens), reduction (share of the budget spared; both NaN if it never
    reaches the target), own_reduction (the same for the MHA run itself), end_gap (Relation's last
    smoothed loss − target) and source. A pair of which a run diverged has no row.
    """
    curves, rows, runs = {}, [], runs.dropna(subset="final_nll")
    budgets = runs.set_index(KEY_IN_SETTING)["budget_tokens"].to_dict()
    for key, log in losses.groupby(KEY_IN_SETTING):
        if key in budgets:
            curves[key] = stats.smoothed(log, window * budgets[key])
    for (scale, seed), pair in runs.groupby(["scale", "seed"]):
        mha, full = (curves.get((scale, variant, seed)) for variant in PAIRED)
        if mha is None or full is None:
            continue
        target, budget = mha.iloc[-1], budgets[scale, "mha", seed]
        baseline, reached = (stats.crossing(curve, target) or math.nan for curve in (mha, full))
        rows.append({
            "scale": scale, "seed": seed, "source": "\n".join(sources(pair)), "target": target,
            "crossing": reached, "reduction": 1 - reached / budget,
            "own_reduction": 1 - baseline / budget, "end_gap": full.iloc[-1] - target,
        })  # fmt: skip
    return pd.DataFrame(rows, columns=["scale", "seed", "source", *EFFICIENCY])


def pair_means(values: pd.DataFrame) -> Cells:
    """Yield means of rows of `pairs`: for models with the deviation, for differences without."""
    delta = values["column"].str.endswith("delta")
    yield from means(values[~delta], "mean")
    yield from means(values[delta])


def epochs(runs: pd.DataFrame, row: str | pd.Series) -> Cells:
    """Yield passes over the training windows: the largest number among a row's runs."""
    runs = runs.assign(row=row).dropna(subset=["epochs"])
    for key, group in runs.groupby("row", sort=False):
        yield cell(key, "epochs", group["epochs"].max(), n=len(group), of=group)


@table("2", "main-results", "Main validation results")
def main_results(
    runs: pd.DataFrame, losses: pd.DataFrame, models: pd.DataFrame, window: float
) -> Cells:
    """Final validation NLL of the paired MHA and Full Relation models: mean ± sample standard
    deviation over seeds, and the mean paired difference with its 95% interval. Backbone: layers /
    d_model / heads × d_h / d_ff. Token reduction: the share of the budget that is left when
    Relation reaches its MHA run's final smoothed training loss, a mean over the seeds that do."""
    backbone = SHAPE.replace("/", "L/", 1).format_map
    wordings = {
        "backbone": backbone,
        "data": lambda m: f"{m['data_title'].removesuffix(' corpus')}/{vocabulary(m)}",
        "tokens": tokens,
    }
    yield from model_cells(models, wordings)
    matrix = runs[runs["variant"].isin(PAIRED) & ~runs["further"]]
    values = pairs(matrix)
    names = {name: f"{name}_nll" for name in PAIRED}
    yield from pair_means(values.replace({"column": names}))
    rows = efficiency(matrix, losses, window)
    spared = rows.rename(columns={"scale": "row", "reduction": "value"})
    spared = spared[spared.groupby("row")["value"].transform("count") > 0]
    none = "never reached (not in the mean)"
    yield from means(spared.assign(column="token_reduction"), "mean", none)
    for scale, scale_rows in rows.groupby("scale", sort=False):
        if scale_rows["reduction"].isna().all():
            reason = f"no seed of {len(scale_rows)} reached its MHA run's final smoothed loss"
            never = {"n": len(scale_rows), "status": "not reached", "reason": reason}
            for name in ("mean", "sd"):
                yield cell(scale, "token_reduction", of=scale_rows, statistic=name, **never)
        yield cell(scale, "window", window, of=scale_rows)
    yield from epochs(matrix, matrix["scale"])
    counted = matrix.dropna(subset="validation_characters")
    bits = stats.bits_per_character(counted)
    yield from means(nll(counted, column="bits." + counted["variant"], value=bits))


@table("11", "app-nll", "Final validation NLL by seed")
def paired_nll(
    runs: pd.DataFrame, losses: pd.DataFrame, window: float, planned: pd.DataFrame
) -> Cells:
    """Final validation NLL of every pair, and the mean difference with its 95% interval over seeds.
    Our seeds share no random numbers with the paper's seeds of the same number, so the table does
    not compare them one by one. Further pairs have seeds beyond the matrix and separate a
    difference from the spread of runs. Tokens spared: the share of the budget left when Relation
    reaches MHA's final smoothed training loss (0 if never), or when MHA first reaches it."""
    paired = runs[runs["variant"].isin(PAIRED)]
    matrix, further = paired[~paired["further"]], paired[paired["further"]]
    values = pairs(matrix)
    of_seeds = values.assign(row=values["row"] + "/" + values["seed"].astype(str))
    yield from means(of_seeds)
    yield from pair_means(values.assign(row=values["row"] + "/mean"))
    yield from epochs(matrix, matrix["scale"] + "/" + matrix["seed"].astype(str))
    beyond, spared = pairs(further), efficiency(further, losses, window)
    wanted = planned[(planned["kind"] == "runs") & planned["further"].astype(bool)]
    for scale in dict.fromkeys([*beyond["row"], *wanted["scale"]]):
        seeds = set(wanted["seed"][wanted["scale"] == scale])
        of_scale = beyond[beyond["row"] == scale]
        yield from _further(f"{scale}/further", of_scale, spared[spared["scale"] == scale], seeds)


def _further(row: str, values: pd.DataFrame, spared: pd.DataFrame, planned: set[int]) -> Cells:
    """Yield cells of the further pairs whose two runs have both finished."""
    wide = values.pivot(index="seed", columns="column", values="value")
    wide = wide.reindex(columns=[*PAIRED, "delta"]).dropna()
    complete = values[values["seed"].isin(wide.index)].assign(row=row)
    complete["column"] = "further." + complete["column"]
    n, lacking = len(wide), planned - set(wide.index)
    why = f"seeds without a pair: {spans(lacking)}" if lacking else ""
    yield cell(row, "further.seeds", text=spans(planned | set(wide.index)), of=complete)
    yield cell(row, "further.pairs", n, n=n, reason=why, of=complete)
    yield cell(row, "further.planned", len(planned), n=0, of=complete)
    if wide.empty:
        return
    yield from means(complete)
    yield cell(row, "further.spread", stats.mean(wide["delta"]).sd, n=n, of=complete)
    yield cell(row, "further.won", int((wide["delta"] < 0).sum()), n=n, of=complete)
    never = spared["reduction"].isna()
    why = f"never reached, counted as none: seeds {spans(spared['seed'][never])}"
    yield cell(row, "further.reached", int((~never).sum()), n=len(spared), of=complete)
    # A mean without the pairs that never reach the target would favour Relation.
    zero = spared.fillna({"reduction": 0.0})
    full, mha = zero["reduction"], zero["own_reduction"]
    for name, share in {"full": full, "mha": mha, "difference": full - mha}.items():
        share_rows = zero.assign(row=row, column=f"further.spared.{name}", value=share)
        of_relation = never.any() and name != "mha"
        yield from ({**each, "reason": why if of_relation else ""} for each in means(share_rows))


def spans(numbers: Iterable[int]) -> str:
    """Format whole numbers in order, three or more in a row as a span: 42, 45 to 72."""
    runs: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(texts)


@table("12", "app-token-efficiency", "Token efficiency by seed")
def token_efficiency(runs: pd.DataFrame, losses: pd.DataFrame, window: float) -> Cells:
    """Tokens at which each Relation run first reaches its MHA run's final smoothed training loss,
    and the share of the budget that this saves. Noise in the curves makes a first crossing early.
    The table therefore also says how early each MHA run first reaches its own final loss."""
    why = "Relation's smoothed loss stayed above the target to its last token"
    never = {"status": "not reached", "reason": why}
    matrix = runs[runs["variant"].isin(PAIRED) & ~runs["further"]]
    rows = efficiency(matrix, losses, window)
    for (scale, seed), pair in rows.groupby(["scale", "seed"], sort=False):
        row = f"{scale}/{seed}"
        for column in EFFICIENCY:
            value = pair[column].item()
            yield cell(row, column, value, of=pair, **(never if math.isnan(value) else {}))
        yield cell(row, "window", window, of=pair)
