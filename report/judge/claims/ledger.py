"""The claims, their verdicts, and whether one would flip without a seed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from report.judge.chosen import CHOSE, chosen_reading, why
from report.judge.claims import checks, quality, structure, systems
from report.judge.claims.context import Context
from report.judge.claims.evidence import Evidence, Outcome, Verdict, outcome
from report.values.complexity import WIDEST_INTERVAL
from report.values.frames import CampaignRecords
from report.values.structure import LARGEST_L1_SELF, least_exchange


def _sized(direction: str) -> str:
    return (
        f"{direction} at every scale that was run; and the paper's value in our 95% t interval "
        "over seeds, or ours within the paper's rounding or, where it prints its seeds, one of "
        "its standard deviations."
    )


_SIZE = _sized("The paper's sign")
_GOOD = "At least as good as the paper's worst scale, at every scale that was run, on a CUDA GPU."
_LESS = (
    "No more memory than FlashAttention allocates, and a ratio of at most the paper's largest, at "
    "every scale that was run, on a CUDA GPU."
)
# Claims 1 to 18 and their rules were fixed before any run.
_ADDED = (
    "Added after the first replication, and fixed before the runs under the reading chosen since. "
)
_CHECKED = "Not tested by a verification from before the check."


@dataclass(frozen=True)
class Claim:
    """One claim.

    gather: its evidence; rule: what "reproduced" means for it; any_geometry: whether models of any
    size can test it; first_layers: whether it rests on layers 0 and 1, which choose a reading.
    """

    number: int
    text: str
    gather: Callable[[Context], Iterable[Evidence]]
    tables: tuple[str, ...]
    rule: str = _SIZE
    any_geometry: bool = False
    first_layers: bool = False


CLAIMS = (
    Claim(
        1,
        "Full Relation has a lower mean final validation NLL than MHA at 10M, 30M and 100M.",
        quality.lower_nll,
        ("main-results", "app-nll"),
    ),
    Claim(
        2,
        "Full Relation wins eight of nine paired comparisons.",
        quality.wins,
        ("app-nll",),
        "At most one loss in nine pairs.",
    ),
    Claim(
        3,
        "Full Relation reaches the paired MHA run's final training loss with 7.3%, 5.7% and 4.5% "
        "fewer tokens.",
        quality.fewer_tokens,
        ("main-results", "app-token-efficiency"),
    ),
    Claim(
        4,
        "Ablations raise the mean NLL: Exchange-only by 0.0320, Raw-X by 0.0366, no count "
        "calibration by 0.0506, a single head by 0.0507, no Givens mixing by 0.0032.",
        quality.ablations,
        ("structural-ablations", "app-ablation"),
    ),
    Claim(
        5,
        "Parameter parity: Full Relation adds 5 parameters a layer.",
        quality.parameters,
        ("app-configs",),
        "Counted on the built models: 5 a layer, and the paper's counts exactly.",
    ),
    Claim(
        6,
        "Self flow in the first layer is above MHA's diagonal flow at every scale.",
        structure.self_flow_first,
        ("relation_internal", "app-structural-layerwise"),
        first_layers=True,
    ),
    Claim(
        7,
        "The effective rank of the first layer's flow is 2.34 to 2.67 times MHA's.",
        structure.rank_first,
        ("relation_internal", "app-structural-layerwise"),
        _sized("Relation's effective rank over MHA's above 1"),
        first_layers=True,
    ),
    Claim(
        8,
        "Self flow in the second layer is below 1.5% at every scale.",
        structure.self_flow_second,
        ("relation_internal", "app-structural-layerwise"),
        _sized(f"Below {LARGEST_L1_SELF:g}%"),
        first_layers=True,
    ),
    Claim(
        9,
        "From the third layer on, 97.13 to 98.99% of Relation's flow goes to Exchange.",
        structure.exchange_deep,
        ("relation_internal",),
        _sized(f"At least {least_exchange():g}%, the paper's least but for rounding,"),
    ),
    Claim(
        10,
        "Historical mass beyond 128, 256 and 512 tokens is higher than MHA's at every scale.",
        structure.distant_mass,
        ("relation_internal", "app-structural-routing"),
        first_layers=True,
    ),
    Claim(
        11,
        "The first-token sink is lower than MHA's at every scale; the mass on the first 32 tokens "
        "is higher at 10M and 30M.",
        structure.sink,
        ("app-structural-sink-profile", "app-structural-routing"),
        first_layers=True,
    ),
    Claim(
        12,
        "FlashRelation is 4.17 to 5.28 times faster than the materialised operator at T = 1024, in "
        "whole training steps.",
        systems.speedup,
        ("efficient-relation",),
        _GOOD,
    ),
    Claim(
        13,
        "FlashRelation reaches 89.7 to 92.9% of FlashAttention's throughput in whole training "
        "steps.",
        systems.beside_attention,
        ("efficient-relation", "app-prod-fr-fa"),
        _GOOD,
    ),
    Claim(
        14,
        "FlashRelation allocates no more memory than FlashAttention (Table 15).",
        systems.memory,
        ("app-prod-fr-fa",),
        _LESS,
    ),
    Claim(
        15,
        "FlashRelation computes the exact Full Relation operator.",
        checks.exactness,
        (),
        "Y and every gradient off the definition in FP64 by at most twice what the definition in "
        "the same precision is, plus 1e-3 (FP32: 1e-5) of the result, in RMS and at the largest. "
        "Not tested without the Triton kernel: another backend within its bounds decides nothing.",
        any_geometry=True,
    ),
    Claim(
        16,
        "Linear Relation's cost is linear in T and its decode state constant; Full Relation's "
        "decode state grows with T.",
        systems.complexity,
        ("token-mixing-complexity", "app-linear-long"),
        f"The power in the fit's 95% interval, or within {systems.POWER_OF_TIME} of it for time, "
        f"{systems.POWER_OF_BYTES} for bytes. A power whose interval is wider than "
        f"{WIDEST_INTERVAL:g} is undetermined.",
        any_geometry=True,
    ),
    Claim(
        17,
        "The Hybrid has 31,967,571 parameters and reaches an NLL of 1.2780 ± 0.0050.",
        quality.hybrid,
        ("app-hybrid",),
        "The parameters exactly; and the paper's NLL in our 95% t interval over seeds, or ours "
        "within one of the paper's standard deviations, on its data.",
    ),
    Claim(
        18,
        "Identities: F_ii + g_i = 1; the count correction leaves the allocation of Exchange "
        "unchanged; the first token's output is its own information.",
        checks.identities,
        (),
        "The largest error on random states within rounding, of the definition in FP64 and, where "
        "the Triton kernel was checked, of FlashRelation in the campaign's precision.",
        any_geometry=True,
    ),
    Claim(
        19,
        "The flow of Relation spans more dimensions than MHA's at every scale: higher stable and "
        "effective rank, more dimensions in 90% and 95% of the energy, less of it in the top "
        "singular value (Table 10).",
        structure.spectrum,
        ("app-structural-spectrum",),
        _ADDED + _SIZE,
        first_layers=True,
    ),
    Claim(
        20,
        "Unlike MHA, Relation uses its first layer as a Self anchor and a high-rank router, then "
        "shifts rapidly to Exchange.",
        structure.anchor,
        ("app-structural-layerwise",),
        f"{_ADDED}At every scale that was run: Self flow and effective rank of the first layer "
        f"above those of every later one; Self flow of the second below {structure.RAPID:.0%} of "
        "the first's; and the second's share of the first's below that of MHA's diagonal. The "
        "paper gives no number, so none is asked for.",
        first_layers=True,
    ),
    Claim(
        21,
        "Linear Relation trains up to T = 32,768 in the paper's 32 GB; T = 65,536 runs out of "
        "memory.",
        systems.long_context,
        ("app-linear-long",),
        f"{_ADDED}The paper's status at every T, on the paper's GPU alone: what fits depends on "
        "the GPU's memory.",
    ),
    Claim(
        22,
        "Givens mixing is orthogonal.",
        checks.mixing,
        (),
        f"{_ADDED}On random states, within rounding and under both pairings: lengths and inner "
        "products of every pair of heads stay, and the transpose undoes the mixing; in FP64 and in "
        f"the campaign's precision. {_CHECKED}",
        any_geometry=True,
    ),
    Claim(
        23,
        "Linear Relation's recurrence is the expanded sum over history.",
        checks.recurrence,
        (),
        f"{_ADDED}Y, the last state and every gradient of the sum and of the chunked form off the "
        "recurrence in FP64 by at most 1e-12 of the result, in RMS and at the largest. The "
        "campaign's backend in its precision: twice what the recurrence in that precision is off, "
        f"plus 1e-3 (FP32: 1e-5). {_CHECKED}",
        any_geometry=True,
    ),
    Claim(
        24,
        "Exchange is strictly historical: it reads the tokens before the current one alone.",
        checks.history,
        (),
        f"{_ADDED}In Full and Linear Relation, on random states: other coordinates and information "
        "from any token on leave all earlier outputs the same to the last bit; and other "
        "information of one token moves its output by its Self share (Linear: by itself) within "
        "rounding. The definitions in FP64 decide, and a campaign's backends may fail it. "
        f"{_CHECKED}",
        any_geometry=True,
    ),
)


@dataclass(frozen=True)
class Judged:
    """A claim with its evidence and verdict.

    not_established, without: see ``Outcome``. flips: the seeds without which the others would give
    another verdict, each with that verdict. beside: what evidence tells that the verdict does not
    count.
    """

    claim: Claim
    evidence: tuple[Evidence, ...]
    verdict: Verdict
    reason: str
    flips: dict[int, Verdict]
    not_established: str = ""
    without: str = ""

    @property
    def beside(self) -> str:
        return "; ".join(row.told for row in self.evidence if row.told)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s for row in self.evidence for s in row.sources))


def _judge(claim: Claim, context: Context) -> tuple[tuple[Evidence, ...], Outcome]:
    """The evidence, and the verdict: other models than the paper's decide nothing."""
    shown, heard = [], []
    for row in claim.gather(context):
        why = "" if claim.any_geometry else _other_models(row, context)
        shown.append(replace(row, direction=None, size=None) if why else row)
        heard.append(replace(shown[-1], note=why) if why else row)
    return tuple(shown), outcome(heard)


def _other_models(row: Evidence, context: Context) -> str:
    return context.setting(row.sources, row.scales).other_models if row.sources else ""


def judge_claims(records: CampaignRecords, claims: Sequence[Claim] = CLAIMS) -> list[Judged]:
    """The claims' verdicts by their rules; first layers that chose the reading decide nothing.

    A flip is told for seeds of which two or more have records; claims that rest on no seed, or have
    no verdict, have none.
    """
    whole = Context(records)
    seeds = sorted({int(seed) for seed in [*records.runs["seed"], *records.flow["seed"]]})
    without = {seed: Context(records, seed, whole) for seed in seeds} if len(seeds) > 1 else {}
    chosen = chosen_reading(records)
    judged = []
    for claim in claims:
        evidence, (verdict, reason, *labels) = _judge(claim, whole)
        if chosen is not None and claim.first_layers and verdict != "not tested":
            # A miss says something even here, so the reader learns of it.
            told = f"{why(chosen)}; its rule alone would give: {verdict}"
            judged.append(Judged(claim, evidence, CHOSE, told, {}))
            continue
        others = {seed: _judge(claim, context)[1].verdict for seed, context in without.items()}
        # Without its only seed a claim is not tested, which says nothing about that seed.
        same = (verdict, "not tested")
        flips = {s: v for s, v in others.items() if verdict != "not tested" and v not in same}
        judged.append(Judged(claim, evidence, verdict, reason, flips, *labels))
    return judged
