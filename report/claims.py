"""The paper's 24 claims. A rule that was fixed beforehand judges each claim in one setting.

A claim is a function from a ``Case`` (a setting's cells and records) to rows of evidence. Its
docstring says what the paper asserts. A second paragraph states the rule if it is not ``SIGN``.
``judge`` turns the rows into verdicts (docs/preregistration.md).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import pandas as pd
import scipy  # as in report/stats.py

from relation.variants import ABLATIONS, VARIANTS
from report.data import Records, Setting
from report.evidence import LAST_BIT, Case, Evidence, Term, above, below, compare, joined, outcome
from report.paper import GPU, SCALES, SEEDS

PARAMETERS_A_LAYER, HYBRID_PARAMETERS = 5, 31_967_571
HYBRID = {"layers": 12, "d_model": 480, "heads": 8, "d_ff": 960, "vocab": 4096, "context": 2048}
# Tolerances of claim 16. Launches at small T and cache misses at large T bend a fitted power of
# time. Bytes are counted, so only rounding changes their power.
POWER_OF_TIME, POWER_OF_BYTES = 0.15, 0.01
# The variation that was chosen by the flow of layers 0 and 1 (docs/preregistration.md).
CHOSEN_VARIATION = "nearest"
# What must equal the paper's in the models behind a claim: columns of app-configs, and the lengths
# of the diagnosed sequences. pair: MHA was diagnosed as well.
MODELS = ("geometry", "vocab", "context")
TRAINED = (*MODELS, "tokens")
FLOW = (*TRAINED, "flow_length", "rank_length", "pair")
SIGN = "The paper's sign holds at every scale that was run. In addition, its size."
SIZE = (
    "the paper's value lies in our 95% t interval over seeds, or our value lies within the paper's "
    "rounding or (if the paper prints its seeds) within one of the paper's standard deviations"
)
# Claims 1 to 18 and their rules were fixed before any run.
ADDED = (
    "Added after the first replication and before the runs of the setting nearest to the paper. "
)


@dataclass(frozen=True)
class Claim:
    """One claim. rule: what "reproduced" means. needs: what must equal the paper's in the models
    behind it. first_layers: whether it rests on layers 0 and 1."""

    number: int
    text: str
    rule: str
    tables: tuple[str, ...]
    gather: Callable[[Case], Iterable[Evidence]]
    needs: tuple[str, ...]
    first_layers: bool


@dataclass(frozen=True)
class Judged:
    """A claim's verdict in one setting. not_established: labels of the evidence behind the verdict
    whose interval does not exclude the opposite result, or that rests on one seed."""

    claim: Claim
    evidence: tuple[Evidence, ...]
    verdict: str
    reason: str
    not_established: str = ""


def judge(cells: pd.DataFrame, records: Records) -> list[Judged]:
    """Return the verdicts of one setting. cells: its rows of ``report.table.cells``."""
    case, judged = Case(cells, records), []
    for claim in CLAIMS:
        rows = list(claim.gather(case)) or [_unchecked(records)]
        rows = tuple(row.undecided(case.mismatch(row.scale, claim.needs)) for row in rows)
        verdict, reason, not_established = outcome(rows)
        chosen = records.setting.variation == CHOSEN_VARIATION and claim.first_layers
        if chosen and verdict != "not tested":
            # A claim that fails even here is informative, so the reason has the rule's verdict.
            reason = f"layers 0 and 1 chose this setting; its rule alone would give: {verdict}"
            verdict, not_established = "chose the setting", ""
        judged.append(Judged(claim, rows, verdict, reason, not_established))
    return judged


def frames(
    settings: Iterable[Setting], judged: Iterable[list[Judged]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the verdicts and the evidence of all settings, each as a frame with a row for each."""
    verdicts, evidence = [], []
    for setting, judged_claims in zip(settings, judged, strict=True):
        for each in judged_claims:
            key = {"setting": setting.name, "claim": each.claim.number}
            verdict = {n: getattr(each, n) for n in ("verdict", "reason", "not_established")}
            verdicts.append({**key, "text": each.claim.text, **verdict, "rule": each.claim.rule})
            evidence += [{**key, **asdict(row)} for row in each.evidence]
    return pd.DataFrame(verdicts), pd.DataFrame(evidence)


def claim(
    number: int, *tables: str, needs: tuple[str, ...] = (), first_layers: bool = False
) -> Callable[[Callable], Claim]:
    """Declare a function as a claim. Its docstring is the text; a second paragraph is the rule.

    SIZE replaces the words "its size" in a rule.
    """

    def declare(gather: Callable[[Case], Iterable[Evidence]]) -> Claim:
        text, _, rule = inspect.getdoc(gather).partition("\n\n")
        rule = (" ".join(rule.split()) or SIGN).replace("its size", SIZE)
        rule = ADDED + rule if number > 18 else rule
        return Claim(number, " ".join(text.split()), rule, tables, gather, needs, first_layers)

    return declare


# Losses and parameters: claims 1 to 5 and 17 (Section 6.1, Appendices C, D, E).


def _further(case: Case, column: str, quantity: str, paper: dict[str, Term]) -> Iterator[Evidence]:
    """Yield evidence from the pairs beyond the paper's seeds. It counts for no verdict."""
    shown = {"counted": "pairs", "asks_size": False, "essential": False, "informative": True}
    for scale, term in paper.items():
        row, label = f"{scale}/further", f"{scale}, further pairs"
        if planned := case.term("app-nll", row, "further.planned").value:
            term = case.term("app-nll", row, f"further.{column}").against(term)
            evidence = compare(label, quantity, term, **shown, scale=scale)
            yield evidence.noted(f"{evidence.n} of {planned:.0f} pairs beyond the paper's seeds")


@claim(1, "main-results", "app-nll", needs=TRAINED)
def lower_nll(case: Case) -> Iterator[Evidence]:
    """Full Relation has a lower mean final validation NLL than MHA at 10M, 30M and 100M."""
    quantity = "NLL, Relation − MHA, mean of pairs"
    terms = {scale: case.term("app-nll", f"{scale}/mean", "delta") for scale in SCALES}
    for scale, term in terms.items():
        term = term.with_spread(case.seeds("app-nll", scale, "delta"))
        yield compare(scale, quantity, term, below(0))
    yield from _further(case, "delta", quantity, terms)


@claim(2, "app-nll")
def wins(case: Case) -> Iterator[Evidence]:
    """Full Relation wins eight of nine paired comparisons.

    Relation loses at most one of nine pairs."""
    won = paper_won = 0
    lost: list[str] = []
    gaps: dict[str, list[str]] = {}  # pairs by the reason why they are missing
    for scale in SCALES:
        mismatch = case.mismatch(scale, TRAINED)
        for seed, term in zip(SEEDS, case.seeds("app-nll", scale, "delta"), strict=True):
            pair = f"{scale}/{seed}"
            paper_won += term.paper < 0
            if mismatch or term.value is None:
                gaps.setdefault(mismatch or term.reason, []).append(pair)
            elif term.value < 0:
                won += 1
            else:
                lost.append(pair)
    n, pairs = won + len(lost), len(SCALES) * len(SEEDS)
    # A missing pair may be a loss. If that could change the result, the claim is undecided.
    decided = n > 0 and (len(lost) > 1 or pairs - won <= 1)
    share = scipy.stats.binomtest(won, max(n, 1)).proportion_ci()
    notes = [f"pairs lost: {', '.join(lost)}"] if lost else []
    if decided:
        notes.append(f"95% interval of the share won: {share.low:.0%} to {share.high:.0%}")
    notes += [f"{', '.join(missing)}: {why}" for why, missing in gaps.items()]
    yield Evidence(
        "number of wins", "pairs won by Relation", paper=paper_won, ours=won if n else None, n=n,
        counted="pairs", paper_n=pairs, direction=len(lost) <= 1 if decided else None,
        essential=True, asks_size=False, note=joined(*notes),
        contested=share.low <= 1 - 1 / pairs <= share.high,
    )  # fmt: skip
    yield from _further(case, "won", "pairs won by Relation", dict.fromkeys(SCALES, Term()))


@claim(3, "main-results", "app-token-efficiency", needs=TRAINED)
def fewer_tokens(case: Case) -> Iterator[Evidence]:
    """Full Relation reaches the paired MHA run's final training loss with 7.3%, 5.7% and 4.5%
    fewer tokens."""
    quantity, table = "tokens spared, mean of pairs", "app-token-efficiency"
    terms = {scale: case.term("main-results", scale, "token_reduction", "mean") for scale in SCALES}
    for scale, term in terms.items():
        pairs = case.seeds(table, scale, "reduction")
        evidence = compare(scale, quantity, term.with_spread(pairs), above(0))
        if never := sum(pair.status == "not reached" for pair in pairs):
            # The mean leaves out these pairs, although they contradict the claim.
            decided = never + sum(pair.value is not None for pair in pairs)
            direction = False if 2 * never >= decided else evidence.direction
            evidence = replace(evidence, direction=direction, size=None)
            evidence = evidence.noted(f"{never} of {decided} pairs never reach that loss")
        yield evidence
    yield from _further(case, "spared.full", quantity, terms)


@claim(4, "structural-ablations", "app-ablation", needs=TRAINED)
def ablations(case: Case) -> Iterator[Evidence]:
    """Ablations raise the mean NLL: Exchange-only by 0.0320, Raw-X by 0.0366, no count calibration
    by 0.0506, a single head by 0.0507, no Givens mixing by 0.0032."""
    table, quantity = "app-ablation", "NLL, ablation − Full Relation, mean of pairs"
    for variant in ABLATIONS:
        columns = [f"seed_{seed}" for seed in SEEDS]
        seeds = (case.term(table, variant, c) - case.term(table, "full", c) for c in columns)
        term = case.term(table, variant, "delta").with_spread(seeds)
        name = VARIANTS[variant].title
        yield compare(name, quantity, term, above(0), essential=True, scale="10M")


@claim(5, "app-configs", needs=MODELS)
def parameters(case: Case) -> Iterator[Evidence]:
    """Parameter parity: Full Relation adds 5 parameters per layer.

    Counted on the configured models: 5 per layer, and the totals equal the paper's.
    """
    for scale in SCALES:
        full, mha = case.pair("app-configs", scale, "params")
        added = full - mha
        evidence = compare(scale, "count, Relation − MHA", added, above(0), counted="pairs")
        if added.value is not None:
            geometry, _ = case.ours_and_paper("app-configs", scale, "geometry")
            layers = int(geometry.partition("/")[0])
            direction = added.value == PARAMETERS_A_LAYER * layers
            size = (full.value, mha.value) == (full.paper, mha.paper)
            evidence = replace(evidence, direction=direction, size=size)
        yield evidence


@claim(17, "app-hybrid", needs=TRAINED)
def hybrid(case: Case) -> Iterator[Evidence]:
    """The Hybrid has 31,967,571 parameters and reaches an NLL of 1.2780 ± 0.0050.

    The number of parameters equals the paper's. On the paper's data, the paper's NLL lies in our
    95% t interval over seeds, or our NLL lies within one of the paper's standard deviations.
    """
    models = case.records.models.query("scale == '30M' and variant == 'hybrid'").to_dict("records")
    term, unlike = Term(HYBRID_PARAMETERS, unit="parameters"), ""
    for model in models:  # one or none
        term = replace(term, value=float(model["parameters"]), n=1, reason="")
        changed = [name for name in HYBRID if model[name] != HYBRID[name]]
        unlike = joined(*(f"{n} is {model[n]}, the paper's {HYBRID[n]}" for n in changed))
    exact = None if term.value is None else term.value == HYBRID_PARAMETERS
    evidence = compare("parameters", "by the configuration", term, essential=True, counted="models")
    yield replace(evidence, direction=exact, size=None, asks_size=False).undecided(unlike)
    term = case.term("app-hybrid", "mean", "nll", "mean")
    term = term.with_spread(case.term("app-hybrid", str(seed), "nll") for seed in SEEDS)
    nll = compare("NLL", "at the end, mean of seeds", term, essential=True, scale="30M")
    other_data = case.mismatch("30M", ("data",)) if term.value is not None else ""
    yield nll.undecided(unlike or other_data)


# The flow inside the trained models: claims 6 to 11, 19, 20 (Section 6.2, Appendix B.5).


def _less_mha(
    case: Case, table: str, *rows: tuple[str, str, str, Callable], left_out: Collection = ()
) -> Iterator[Evidence]:
    """Yield Relation's value minus MHA's at every scale. rows: column, name, quantity, sign.

    left_out: pairs of a scale and a column."""
    for scale in SCALES:
        for column, name, of, holds in rows:
            if (scale, column) not in left_out:
                full, mha = case.pair(table, scale, column)
                label, quantity = f"{scale}, {name}", f"{of}, Relation − MHA"
                yield compare(label, quantity, full - mha, holds, scale=scale)


@claim(6, "relation_internal", "app-structural-layerwise", needs=FLOW, first_layers=True)
def self_flow_first(case: Case) -> Iterator[Evidence]:
    """Self flow in the first layer is above MHA's diagonal flow at every scale."""
    for scale in SCALES:
        full, mha = case.pair("relation_internal", scale, "l0_self")
        yield compare(scale, "L0 Self flow, Relation − MHA's diagonal", full - mha, above(0))


@claim(7, "relation_internal", "app-structural-layerwise", needs=FLOW, first_layers=True)
def rank_first(case: Case) -> Iterator[Evidence]:
    """The effective rank of the first layer's flow is 2.34 to 2.67 times MHA's.

    Relation's effective rank / MHA's is above 1 at every scale that was run. In addition, its size.
    """
    for scale in SCALES:
        full, mha = case.pair("relation_internal", scale, "l0_effrank")
        term = (full / mha).against(case.term("relation_internal", scale, "l0_effrank.ratio"))
        yield compare(scale, "L0 effective rank of the flow, Relation / MHA", term, above(1))


@claim(8, "relation_internal", "app-structural-layerwise", needs=FLOW, first_layers=True)
def self_flow_second(case: Case) -> Iterator[Evidence]:
    """Self flow in the second layer is below 1.5% at every scale.

    Self flow is below 1.5% at every scale that was run. In addition, its size.
    """
    for scale in SCALES:
        term = case.term("relation_internal", scale, "l1_self.full")
        yield compare(scale, "L1 Self flow of Relation", term, below(1.5))


@claim(9, "relation_internal", needs=FLOW)
def exchange_deep(case: Case) -> Iterator[Evidence]:
    """From the third layer on, 97.13 to 98.99% of Relation's flow goes to Exchange.

    At every scale that was run, Exchange gets at least 97.125%, which rounds to the paper's lowest
    share. In addition, its size.
    """
    for scale in SCALES:
        term = case.term("relation_internal", scale, "l2_exchange.full")
        holds = above(97.125 - LAST_BIT)
        yield compare(scale, "Exchange flow of Relation from L2 on", term, holds)


@claim(10, "relation_internal", "app-structural-routing", needs=FLOW, first_layers=True)
def distant_mass(case: Case) -> Iterator[Evidence]:
    """Historical mass beyond 128, 256 and 512 tokens is higher than MHA's at every scale."""
    mass = "historical mass beyond d"
    rows = ((f"beyond_{d}", f"d > {d}", mass, above(0)) for d in (128, 256, 512))
    return _less_mha(case, "relation_internal", *rows)


@claim(11, "app-structural-sink-profile", "app-structural-routing", needs=FLOW, first_layers=True)
def sink(case: Case) -> Iterator[Evidence]:
    """The first-token sink is lower than MHA's at every scale; the mass on the first 32 tokens is
    higher at 10M and 30M."""
    mass = "historical mass on the first tokens"
    rows = (("sink_1", "first 1", mass, below(0)), ("sink_32", "first 32", mass, above(0)))
    left_out = {("100M", "sink_32")}  # the paper claims nothing about it
    return _less_mha(case, "app-structural-sink-profile", *rows, left_out=left_out)


@claim(19, "app-structural-spectrum", needs=FLOW, first_layers=True)
def spectrum(case: Case) -> Iterator[Evidence]:
    """The flow of Relation spans more dimensions than MHA's at every scale: higher stable and
    effective rank, more dimensions in 90% and 95% of the energy, less of it in the top singular
    value (Table 10)."""
    names = {"stable_rank": "stable rank", "effrank": "effective rank", "dims_90": "90% dims"}
    names |= {"dims_95": "95% dims"}
    rows = [(column, name, name, above(0)) for column, name in names.items()]
    rows.append(("top_energy", "top singular energy", "top singular energy", below(0)))
    return _less_mha(case, "app-structural-spectrum", *rows)


@claim(20, "app-structural-layerwise", needs=FLOW, first_layers=True)
def anchor(case: Case) -> Iterator[Evidence]:
    """Unlike MHA, Relation uses its first layer as a Self anchor and a high-rank router, then
    shifts rapidly to Exchange.

    At every scale that was run, Self flow and effective rank are higher in the first layer than in
    any later one. The ratio of Self flow, second layer / first layer, is below 50%, and it is lower
    than the same ratio of MHA's diagonal flow. The paper gives no number, so no size is asked for.
    """
    for scale in SCALES:
        self_flow, rank = case.layers(scale, "self.full"), case.layers(scale, "effrank.full")
        diagonal = case.layers(scale, "self.mha")
        shift, shift_of_mha = self_flow[1] / self_flow[0], diagonal[1] / diagonal[0]
        most = "of Relation, L0 / the largest later layer"
        relative = "L1 / L0 of Relation's Self flow, divided by L1 / L0 of MHA's diagonal"
        for name, quantity, term, holds in (
            ("anchor", f"Self flow {most}", _first_to_most(self_flow), above(1)),
            ("router", f"effective rank {most}", _first_to_most(rank), above(1)),
            ("shift", "Self flow of Relation, L1 / L0", shift, below(0.5)),
            ("shift compared with MHA", relative, shift / shift_of_mha, below(1)),
        ):
            label = f"{scale}, {name}"
            yield compare(label, quantity, term, holds, asks_size=False, scale=scale)


def _first_to_most(layers: list[Term]) -> Term:
    """Divide the first layer by the largest later layer: the paper's by its own, ours by ours."""
    ours = max(layers[1:], key=lambda term: term.value or 0)
    return layers[0] / ours.against(max(layers[1:], key=lambda term: term.paper))


# Speed, memory and cost: claims 12 to 14, 16, 21 (Sections 5, 6.3, Appendices F to H).

BATCHES = ("micro_ga.mha", "micro_ga.full")  # columns of app-prod-fr-fa
FIXED_CONTEXT = 1024  # the paper states it in the caption of Table 5


def _speeds(
    case: Case, table: str, same: Sequence[str], quantity: str, terms: dict[str, Term],
    direction: Callable | None, met: Callable,
) -> Iterator[Evidence]:  # fmt: skip
    """Compare each scale with the paper by `direction` and `met`.

    same: columns of the table that must equal the paper's; otherwise the scale is undecided.
    """
    device, _ = case.ours_and_paper(table, "setting", "device")
    for scale, term in terms.items():
        why = "" if "NVIDIA" in (device or "") else f"measured on {device}, not on a GPU"
        for column in same:
            ours, paper = case.ours_and_paper(table, scale, column)
            paper = paper or FIXED_CONTEXT
            if ours != paper:
                why = f"measured with {column} = {ours}, not {paper}"
        evidence = compare(scale, quantity, term, direction, met, counted="rounds")
        yield evidence if evidence.ours is None else evidence.undecided(why)


@claim(12, "efficient-relation", needs=MODELS)
def speedup(case: Case) -> Iterator[Evidence]:
    """FlashRelation is 4.17 to 5.28 times faster than the materialised operator at T = 1024, or
    more, in whole training steps.

    Every scale that was run is at least as good as the paper's worst scale, on a CUDA GPU.
    """
    terms = {scale: case.term("efficient-relation", scale, "fixed.speedup") for scale in SCALES}
    quantity, same = "training throughput, FlashRelation / materialised", ["fixed.context"]
    worst = min(term.paper - (term.rounding + LAST_BIT) for term in terms.values())
    return _speeds(case, "efficient-relation", same, quantity, terms, above(1), above(worst))


@claim(13, "efficient-relation", "app-prod-fr-fa", needs=MODELS)
def attention_speed(case: Case) -> Iterator[Evidence]:
    """FlashRelation reaches 89.7 to 92.9% of FlashAttention's throughput, or more, in whole
    training steps.

    Every scale that was run is at least as good as the paper's worst scale, on a CUDA GPU.
    """
    terms = {scale: case.term("efficient-relation", scale, "matched.ratio") for scale in SCALES}
    quantity = "training throughput, FlashRelation / FlashAttention"
    worst = min(term.paper - (term.rounding + LAST_BIT) for term in terms.values())
    # No sign is asked for: the ratio is below 1 in the paper too.
    return _speeds(case, "app-prod-fr-fa", BATCHES, quantity, terms, None, above(worst))


@claim(14, "app-prod-fr-fa", needs=MODELS)
def memory(case: Case) -> Iterator[Evidence]:
    """FlashRelation allocates no more memory than FlashAttention (Table 15).

    At every scale that was run on a CUDA GPU, FlashRelation allocates no more memory than
    FlashAttention, and the ratio of the two is at most the paper's largest.
    """
    pairs = {scale: case.pair("app-prod-fr-fa", scale, "allocated") for scale in SCALES}
    ratios = {scale: full / mha for scale, (full, mha) in pairs.items()}
    quantity, no_more = "allocated memory, FlashRelation / FlashAttention", below(1 + LAST_BIT)
    largest = max(term.paper + (term.rounding + LAST_BIT) for term in ratios.values())
    for row in _speeds(case, "app-prod-fr-fa", BATCHES, quantity, ratios, no_more, below(largest)):
        full, mha = pairs[row.scale]
        yield row.noted("" if row.ours is None else f"{full.value:.3f} and {mha.value:.3f} GiB")


@claim(16, "token-mixing-complexity", "app-linear-long")
def complexity(case: Case) -> Iterator[Evidence]:
    """Linear Relation's cost is linear in T and its decode state constant; Full Relation's decode
    state grows with T.

    The expected power of T lies in the fit's 95% interval, or the fit is off by at most 0.15 for
    time and 0.01 for bytes. A power whose interval is wider than 1 is undetermined."""
    table, full = "token-mixing-complexity", "full-flash"
    if case.term(table, full, "state_exponent").value is None:
        full = "full-reference"  # on a CPU
    for row, cost, label, paper, tolerance, holds in (
        ("linear", "time", "Linear Relation’s time", 1.0, POWER_OF_TIME, below(1.5)),
        ("linear", "state", "Linear Relation’s decode state", 0.0, POWER_OF_BYTES, below(0.5)),
        (full, "state", "Full Relation’s decode state", 1.0, POWER_OF_BYTES, above(0.5)),
    ):
        term = replace(case.term(table, row, f"{cost}_exponent"), paper=paper, rounding=tolerance)
        power = compare(label, "fitted power of T", term, holds, counted="points", essential=True)
        if term.value is not None:
            inside = term.low is not None and term.low <= paper <= term.high
            power = replace(power, size=power.size or inside)
        yield power


@claim(21, "app-linear-long", needs=MODELS)
def long_context(case: Case) -> Iterator[Evidence]:
    """Linear Relation trains up to T = 32,768 in the paper's 32 GB; T = 65,536 runs out of memory.

    Every T has the paper's status. Only the paper's GPU counts, as its memory decides what fits.
    """
    table = "app-linear-long"
    device, _ = case.ours_and_paper(table, "setting", "device")
    other_gpu = "" if GPU in (device or "") else f"measured on {device}, the paper's on an {GPU}"
    for status, quantity, label, lengths in (
        ("PASS", "contexts that train", "T = 1,024 to 32,768", [2**i for i in range(10, 16)]),
        ("OOM", "contexts out of memory", "T = 65,536", [65536]),
    ):
        cells = [case.cells.get((table, str(T), "status", "value"), {}) for T in lengths]
        statuses = [cell["text"] for cell in cells if cell.get("text")]
        missing = [cell.get("reason") for cell in cells if not cell.get("text")]
        why = joined(other_gpu if statuses else "", *missing)
        ours = statuses.count(status) if statuses else None
        yield Evidence(
            label, quantity, paper=len(lengths), ours=ours, n=len(statuses), counted="contexts",
            paper_n=len(lengths), direction=None if why else ours == len(lengths), note=why,
            asks_size=False, essential=True, scale="30M",
        )  # fmt: skip


# Checks of the operators: claims 15, 18 and 22 to 24 (Sections 3 to 5, Appendix A).


def _checked(case: Case, check: str) -> pd.DataFrame:
    """Return the rows of a check. If there are none, ``judge`` reports why."""
    return case.records.checks[case.records.checks["check"] == check]


def _unchecked(records: Records) -> Evidence:
    """Return evidence that says why a check is missing."""
    reasons = records.planned[records.planned["kind"] == "checks"]["reason"]
    why = joined(*reasons) or "no check is part of this setting"
    return Evidence("all", "error", note=why, essential=True)


def _largest_share(rows: pd.DataFrame, label: str, essential: bool) -> Evidence:
    """Return the largest ratio of error to allowed error, for one operator in one precision."""
    shares = (rows["error"] / rows["allowed"]).fillna(math.inf)  # an error without a number fails
    largest = rows.loc[shares.idxmax()]
    quantity = "largest error / allowed, {operator} in {precision}".format_map(largest)
    note = "{measure} error of {name} is the closest to its bound".format_map(largest)
    return Evidence(
        label, quantity, ours=float(shares.max()), n=len(rows), counted="checks", asks_size=False,
        direction=bool((rows["error"] <= rows["allowed"]).all()), note=note, essential=essential,
    )  # fmt: skip


def _only_kernel_passes(evidence: Evidence, backend: str) -> Evidence:
    """A failed check counts on every backend. A passed check counts only on the Triton kernel."""
    if evidence.direction and backend != "flash":
        return evidence.undecided(f"this check ran on backend {backend}, not the kernel")
    return evidence


def _largest_errors(case: Case, check: str, *, kernel: bool = False) -> Iterator[Evidence]:
    """Yield each identity's largest error. The FP64 definition decides; a backend can only fail."""
    for row in _checked(case, check).to_dict("records"):
        backend, precision = row["operator"], row["precision"]
        defined = backend == "definition"
        decides = defined and precision == "fp64"
        label = row["name"]
        if not decides:
            label += f", {precision if defined else backend}"
        evidence = Evidence(
            label, f"largest error, {backend} in {precision}", paper=0.0, ours=row["error"], n=1,
            counted="checks", direction=row["error"] <= row["allowed"], asks_size=False,
            essential=decides, note=f"allowed: {row['allowed']:.2g}",
        )  # fmt: skip
        yield _only_kernel_passes(evidence, backend) if kernel and not defined else evidence


@claim(15)
def exactness(case: Case) -> Iterator[Evidence]:
    """FlashRelation computes the exact Full Relation operator.

    Errors of the output Y and of every gradient are differences from the definition in FP64. The
    RMS error and the largest error are at most twice those of the definition in the same precision,
    plus 1e-3 (FP32: 1e-5) of the result. Only the Triton kernel can pass; others can only fail.
    """
    by = ["scale", "operator", "precision"]
    for (scale, backend, _), rows in _checked(case, "exactness").groupby(by, sort=False):
        yield _only_kernel_passes(_largest_share(rows, str(scale), essential=True), backend)


@claim(18)
def identities(case: Case) -> Iterator[Evidence]:
    """Identities: F_ii + g_i = 1; the count correction leaves the allocation of Exchange unchanged;
    the first token's output is its own information.

    On random states, the largest error is within rounding. This holds for the definition in FP64
    and, if the Triton kernel was checked, for FlashRelation in the campaign's precision.
    """
    return _largest_errors(case, "identity", kernel=True)


@claim(22)
def mixing(case: Case) -> Iterator[Evidence]:
    """Givens mixing is orthogonal.

    On random states, mixing keeps lengths and inner products of every pair of heads, and the
    transpose undoes it, within rounding: for both pairings, in FP64 and the campaign's precision.
    """
    return _largest_errors(case, "mixing")


@claim(23)
def recurrence(case: Case) -> Iterator[Evidence]:
    """Linear Relation's recurrence is the expanded sum over history.

    The output Y, the last state and every gradient of the sum and of the chunked form differ from
    the FP64 recurrence by at most 1e-12 of the result, in RMS and at the largest. The campaign's
    backend may have twice the error of the recurrence in its precision, plus 1e-3 (FP32: 1e-5) of
    the result.
    """
    by = ["operator", "precision"]
    for (backend, precision), rows in _checked(case, "recurrence").groupby(by, sort=False):
        yield _largest_share(rows, f"{backend} in {precision}", essential=precision == "fp64")


@claim(24)
def history(case: Case) -> Iterator[Evidence]:
    """Exchange is strictly historical: it reads only the tokens before the current one.

    Tested on random states of Full and Linear Relation. If a token and all later ones get new
    coordinates and information, every earlier output stays equal to the bit. If one token gets new
    information, its output changes by its Self share of that change (Linear: by the whole change),
    within rounding. The definitions in FP64 decide; a backend of the campaign can only fail.
    """
    return _largest_errors(case, "history")


_CLAIMS = [each for each in globals().values() if isinstance(each, Claim)]
CLAIMS = sorted(_CLAIMS, key=lambda each: each.number)
