"""What the first page puts before the reader: the results that decide, beside the paper's."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relation.pipeline.campaign import LEFT_OUT, READINGS_ALONE
from relation.pipeline.gaps import UNSHIPPED
from report.judge.chosen import CHOSE
from report.render.behind import anchor
from report.render.content import Content
from report.render.environment import SIGNS
from report.render.printed import MISSING, Entry, PrintedTable
from report.render.runs import Run
from report.render.shipped import Shipped
from report.values.conversion import KIND
from report.values.gaps import KINDS, by_job
from report.values.layout import SCALES
from report.values.numbers import DASH

# A line each: what it says, its table and column, and its row at a scale.
HEADLINES = (
    ("Validation NLL, Relation − MHA", "main-results", "delta", "{}"),
    ("Validation NLL, Relation − MHA, further pairs", "app-nll", "further.delta", "{}/further"),
    ("Tokens spared to MHA’s final loss", "main-results", "token_reduction", "{}"),
    (
        "Layer 0 effective rank, Relation / MHA",
        "app-structural-layerwise",
        "effrank.ratio",
        "{}/L0",
    ),
    ("FlashRelation / materialised, tok/s", "efficient-relation", "fixed.speedup", "{}"),
    ("FlashRelation / FlashAttention, tok/s", "efficient-relation", "matched.ratio", "{}"),
)


# The same of what the paper does not measure: no verdict counts these.
BEYOND = (
    ("Converted before its first update − MHA’s final NLL", "beyond-conversion", "start", "{}"),
    ("Tokens until MHA’s final NLL, converted", "beyond-conversion", "until.converted", "{}"),
    ("Tokens until MHA’s final NLL, from nothing", "beyond-conversion", "until.nothing", "{}"),
    ("Final NLL, converted − MHA trained on", "beyond-conversion", "behind", "{}"),
    ("Validation NLL, Relation − MHA", "beyond-scales", "delta", "{}"),
    ("Tokens spared to MHA’s final loss", "beyond-scales", "reduction", "{}"),
    ("Layer 0 Self flow, Relation", "beyond-scales", "l0_self.full", "{}"),
    ("Layer 0 diagonal, MHA", "beyond-scales", "l0_self.mha", "{}"),
    ("Layer 0 effective rank, Relation", "beyond-scales", "l0_effrank.full", "{}"),
    ("Layer 0 effective rank, MHA", "beyond-scales", "l0_effrank.mha", "{}"),
)
# Tables of what only other campaigns plan: the choices of one that does.
PLANNED_BY = {
    "beyond-conversion": (
        "campaign=conversion corpus=books scales=10M variants=mha,full,converted,continued"
    ),
    "beyond-scales": "campaign=books-100m corpus=books scales=100M28pc",
}
_MATRIX = "campaign=books corpus=books"
# Counts and settings that are the paper's, which no measurement made so.
SAME = "settings and counts, the same"
# The class of colour of a share; the others are open.
SHARE_CLASSES = {"within": "agrees", "outside": "differs", SAME: "same", "missing": "gap"}


@dataclass(frozen=True)
class Result:
    """One value beside the paper's, with where its cell stands."""

    paper: Entry
    campaign: Entry
    verdict: str
    link: str

    @property
    def turned(self) -> bool:
        """Whether its sign is not the paper's."""
        return {self.paper.text[:1], self.campaign.text[:1]} == {"+", "−"}


@dataclass(frozen=True)
class Unmeasured:
    """Why a table beyond the paper has no value, what makes them, and which reports have some."""

    why: str
    command: str
    shipped: tuple[Shipped, ...]


@dataclass(frozen=True)
class Headline:
    title: str
    results: tuple[Result | None, ...]


def headlines(
    tables: Sequence[PrintedTable],
    lines: Sequence[tuple[str, str, str, str]] = HEADLINES,
    scales: Sequence[str] = SCALES,
) -> list[Headline]:
    """The headline results at each scale; None where the table has no such cell.

    A line of which no scale has a cell is left out.
    """
    by_label = {printed.table.label: printed for printed in tables}
    found = (
        Headline(title, tuple(_find(by_label[label], row.format(s), column) for s in scales))
        for title, label, column, row in lines
    )
    return [headline for headline in found if any(headline.results)]


def _tried(found: Sequence[Headline]) -> list[Headline]:
    """The headlines that were tried at some scale."""
    left_out = MISSING["not run"]
    return [h for h in found if any(r and r.campaign.text != left_out for r in h.results)]


def overview(content: Content) -> dict[str, Any]:
    """What the first page shows of the paper's results, and of those that the paper has not.

    The paper's are left out where none was tried and some of the others were, as in a campaign that
    trains scales of its own alone.
    """
    scales = (*SCALES, *(s for s in content.page["scales"] if s not in SCALES))
    scales = [s for s in scales if _tried(headlines(content.beyond, BEYOND, [s]))]
    beyond = _tried(headlines(content.beyond, BEYOND, scales))
    compared = headlines(content.tables)
    return {
        "headlines": compared if _tried(compared) or not beyond else [],
        "beyond_headlines": beyond,
        "beyond_scales": scales,
    }


def unmeasured(content: Content) -> dict[str, Unmeasured]:
    """The tables beyond the paper that have no value, by label."""
    page = content.page
    planned = {
        "beyond-conversion": KIND in {row["kind"] for row in content.missing},
        "beyond-scales": not set(page["scales"]) <= set(SCALES),
    }
    found, left = {}, page.get("restrictions", {})
    for printed in content.beyond:
        label = printed.table.label
        if printed.sources:
            continue
        reasons = [text.partition(": ")[2] for _, text in printed.notes]
        if planned.get(label, LEFT_OUT + READINGS_ALONE not in reasons):
            words = shlex.split(page["commands"]["Everything"])
            if any(text.startswith(LEFT_OUT) for text in reasons):
                words = [word for word in words if word.partition("=")[0] not in left]
            if any(text.endswith(UNSHIPPED) for text in reasons):
                words.append("published=false")  # trains again, as checkpoints are not kept
            command, why = shlex.join(words), "; ".join(reasons)
        else:
            command = f"snakemake --cores all --config {PLANNED_BY.get(label, _MATRIX)}"
            why = "this campaign does not plan it"
        having = tuple(one for one in content.shipped if label in one.measured)
        found[label] = Unmeasured(why, command, having)
    return found


def _find(printed: PrintedTable, key: str, part: str) -> Result | None:
    for block in printed.panels:
        for place, column in enumerate(block.panel.columns):
            if [p.column for p in column.parts] != [part]:
                continue
            for row in block.rows:
                if row.key != key:
                    continue
                lines = {line.kind: line.entries[place] for line in row.lines}
                judged = row.verdicts.entries[place].verdict if row.verdicts else ""
                link = f"tables/{printed.table.label}.html#{anchor(row, column)}"
                paper = lines.get("paper", Entry(DASH))
                return Result(paper, lines["campaign"], judged, link)
    return None


def tally(claims: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """How often each verdict was given, and how often it was not established.

    In the order of the signs; those never given are left out.
    """
    claims = list(claims)
    counts = Counter(claim["verdict"] for claim in claims)
    unsure = Counter(claim["verdict"] for claim in claims if claim["not_established"])
    return [(name, counts[name], unsure[name]) for name in SIGNS if counts[name]]


def texts(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """The local texts that the runs read: each a title and a SHA-256; none of other corpora."""
    return list(dict.fromkeys(run.texts for run in runs if run.texts))


def gaps(missing: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """What the campaign lacks: one line a kind and cause, with the names of what it is about."""
    told: dict[str, list[str]] = {}
    for row in by_job(missing):
        # Each names its own file: without it they have one cause.
        cause = re.sub(r"^there is no \S+$", "no record is there", row["reason"])
        kind = KINDS.get(row["kind"], row["kind"])
        seed = [] if row["seed"] < 0 else [str(row["seed"])]
        name = "/".join(filter(None, [row["scale"], row["variant"], *seed]))
        line = f"{kind.capitalize()} {MISSING[row['status']]}: {cause}"
        told.setdefault(line, []).append(name or row["kind"])
    return list(told.items())


def shares(printed: PrintedTable) -> list[tuple[str, int]]:
    """The printed values of a table by what became of them; the missing ones come last."""
    counts: Mapping[str, Any] = printed.verdicts
    judged = sum(counts[name] for name in ("same", "within", "outside", CHOSE))
    parts = [
        ("within", counts["within"]),
        (SAME, counts["same"]),
        ("outside", counts["outside"]),
        (CHOSE, counts[CHOSE]),
        ("measured, not judged", max(0, printed.measured - judged)),
        ("missing", printed.asked - printed.measured),
    ]
    return [(name, count) for name, count in parts if count]
