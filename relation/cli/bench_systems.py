"""`bench systems`: the measurements behind the systems tables, outside Snakemake."""

from collections.abc import Mapping, Sequence

from relation.cli.tables import print_table
from relation.config import Campaign
from relation.errors import InputError
from relation.results import Results, systems_path

COMPLEXITY = "complexity"
_MISSING = "-"


def measure_systems(campaign: Campaign, only: Sequence[str] | None = None) -> None:
    """Measure a campaign's systems benchmarks, print each, and at last the ratios.

    They go where Snakemake would write them. Tokens are the prepared corpus's where it is there,
    else random, and each row says which. only: benchmarks by name, None for all. Raises InputError
    for an unknown name or where there is no such device.
    """
    from relation.data.tokens import token_file
    from relation.systems.measure import measure

    known = list(dict.fromkeys(spec.benchmark for spec in campaign.systems))
    for name in only or ():
        if name not in known:
            raise InputError(f"unknown systems benchmark {name!r}; choose among {', '.join(known)}")
    results, measured = Results(campaign), []
    for spec in campaign.systems:
        if only is not None and spec.benchmark not in only:
            continue
        data = results.data(campaign.data_of_scale(spec.scale))
        prepared = data if token_file(data, "train").exists() else None
        path = results.folder / systems_path(spec)
        rows = measure(spec, prepared, path)
        print(f"\n{spec.benchmark} {spec.scale}: {rows[0]['device']}")
        if spec.benchmark == COMPLEXITY:
            _print_complexity(rows)
        else:
            _print_throughput(rows)
            measured += rows
        _print_notes(rows)
        print(path)
    _print_ratios(measured)


def _interval(row: Mapping, name: str, form: str) -> str:
    if row[name] is None:
        return _MISSING
    text = format(row[name], form)
    if row[f"{name}_low"] is not None:
        text += f" [{row[f'{name}_low']:{form}}, {row[f'{name}_high']:{form}}]"
    return text


def _ratio(row: Mapping, base: Mapping) -> dict:
    """A row's rate over another's, as columns; all None where either was not measured."""
    from relation.systems.statistics import ratio, ratio_apart

    if not row["samples"] or not base["samples"]:
        return dict.fromkeys(("ratio", "ratio_low", "ratio_high"))
    taken = ratio_apart if row["alone"] or base["alone"] else ratio
    return taken(row["samples"], base["samples"])


def _gib(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.2f}"


def _print_throughput(rows: Sequence[Mapping]) -> None:
    apart = rows[0]["benchmark"].startswith("linear")
    table = []
    for row in rows:
        over = {} if apart or row is rows[0] else _ratio(row, rows[0])
        table.append(
            [
                row["side"],
                row["backend"],
                f"{row['context']:,}",
                f"{row['micro']}/{row['accumulation']}",
                _interval(row, "tokens_per_second", ",.0f"),
                _interval(over, "ratio", ".3f") if over else _MISSING,
                _gib(row["allocated_gib"]),
                _gib(row["reserved_gib"]),
                "" if row["status"] == "PASS" else row["status"],
            ]
        )
    over = "ratio" if apart else f"over {rows[0]['side']}"
    header = ["side", "backend", "T", "micro/GA", "tok/s", over, "alloc. GiB", "res. GiB", ""]
    print_table(header, table)


def _print_complexity(rows: Sequence[Mapping]) -> None:
    import pandas as pd

    from report.compute.complexity import fitted_time, grown

    table = [
        [
            row["operator"],
            f"{row['context']:,}",
            _MISSING if row["seconds"] is None else f"{1e3 * row['seconds']:.3f}",
            _MISSING if row["decode_seconds"] is None else f"{1e3 * row['decode_seconds']:.3f}",
            _MISSING if row["decode_state_bytes"] is None else f"{row['decode_state_bytes']:,}",
            "" if row["status"] == "PASS" else row["status"],
        ]
        for row in sorted(rows, key=lambda row: row["operator"])
    ]
    print_table(["operator", "T", "ms", "token ms", "state bytes", ""], table)
    frame = pd.DataFrame(rows)
    for operator, own in frame.groupby("operator"):
        fit, why = fitted_time(own)
        if fit is None:
            print(f"{operator}: {f'undetermined, {why}' if why else 'no time was measured'}")
            continue
        print(
            f"{operator}: time grows as T^{fit.exponent:.3f} [{fit.low:.3f}, {fit.high:.3f}] "
            f"from T = {grown(own)['context'].min():,} on"
        )


def _print_notes(rows: Sequence[Mapping]) -> None:
    for row in rows:
        name = row.get("side") or f"{row['operator']} T={row['context']}"
        if row["status"] != "PASS":
            print(f"{name}: {row['status']}, {row['reason']}")
        if row.get("alone"):
            print(f"{name}: measured apart, because together the sides did not fit")
    for told in dict.fromkeys(row["disturbed"] for row in rows):
        if told is not None:
            print(f"disturbed: {told}")
    clocks = [row["sm_clock_least"] for row in rows if row["sm_clock_least"] is not None]
    if clocks:
        limit = max(row["sm_clock_limit"] or 0 for row in rows)
        print(f"lowest SM clock {min(clocks):.0f} MHz (at most {limit:.0f})")


def _print_ratios(rows: Sequence[Mapping]) -> None:
    """Every ratio that the paper prints beside the one that was measured."""
    from report.paper import load

    printed = load("efficient-relation")
    table = []
    for benchmark, column, base in (
        ("fixed", "fixed.speedup", "reference"),
        ("matched", "matched.ratio", "mha"),
    ):
        for scale in dict.fromkeys(row["scale"] for row in rows if row["benchmark"] == benchmark):
            own = {
                row["side"]: row
                for row in rows
                if (row["benchmark"], row["scale"]) == (benchmark, scale)
            }
            paper = printed.get((scale, column, "value"))
            table.append(
                [
                    f"{benchmark} {scale}: FlashRelation over {base}",
                    _MISSING if paper is None else paper.printed,
                    _interval(_ratio(own["full"], own[base]), "ratio", ".3f"),
                ]
            )
    if table:
        print("\nratios of tokens per second, with the 95% interval of the median")
        print_table(["", "paper (RTX 5090)", "here"], table)
