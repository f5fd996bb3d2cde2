"""The other shipped reports: what each is, and where the claims have another answer there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relation.pipeline.results import REPORT, Results
from relation.pipeline.shipped import CHECKSUMS
from relation.store.parquet import read_origin, read_parquet
from report.judge.chosen import CHOSE
from report.judge.frames import CELLS, CLAIMS, EVIDENCE
from report.judge.readings_words import listed
from report.values.tables import BEYOND

NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Answer:
    """A claim's verdict in a report; ``told`` has the scales that it rests on too."""

    verdict: str
    told: str


@dataclass(frozen=True)
class Shipped:
    """A shipped report.

    ``chosen`` says whether it is of the chosen reading, ``here`` whether it is the one that is
    rendered; ``answers`` holds the claims that have one, ``measured`` the labels of the tables
    beyond the paper that have a value.
    """

    name: str
    title: str
    chosen: bool
    here: bool
    answers: Mapping[int, Answer]
    measured: frozenset[str]

    @property
    def link(self) -> str:
        """Its first page, from another report's folder."""
        return f"../../{self.name}/{REPORT}/index.html"

    @property
    def told(self) -> str:
        """What it is, in a few words."""
        what = "the chosen reading" if self.chosen else self.title
        return f"this one: {what}" if self.here else what


def read_shipped(results: Results) -> list[Shipped]:
    """All shipped reports, where the one to be rendered is one of them and not the only one."""
    if not results.shipped_only:
        return []
    folders = sorted(results.report.parents[1].glob(f"*/{REPORT}/"))
    found = [
        _read(folder, folder == results.report)
        for folder in folders
        if (folder.parent / CHECKSUMS).exists() and (folder / "claims.parquet").exists()
    ]
    return found if len(found) > 1 else []


def _read(folder: Path, here: bool) -> Shipped:
    claims = read_parquet(folder / "claims.parquet", CLAIMS).to_pylist()
    evidence = read_parquet(folder / "evidence.parquet", EVIDENCE).to_pylist()
    cells = read_parquet(folder / "cells.parquet", CELLS).to_pylist()
    page = read_origin(folder / "cells.parquet")["page"]
    beyond = {table.label for table in BEYOND}
    return Shipped(
        name=folder.parent.name,
        title=page["title"],
        chosen=any(claim["verdict"] == CHOSE for claim in claims),
        here=here,
        answers={
            claim["number"]: _answer(claim, evidence, page["scales"])
            for claim in claims
            if claim["verdict"] not in (CHOSE, NOT_TESTED)
        },
        measured=frozenset(c["table"] for c in cells if c["sources"] and c["table"] in beyond),
    )


def _answer(
    claim: Mapping[str, Any], evidence: Sequence[Mapping[str, Any]], scales: Sequence[str]
) -> Answer:
    labels = [
        row["label"]
        for row in evidence
        if row["claim"] == claim["number"] and row["direction"] is not None
    ]
    told = claim["verdict"] + (", not established" if claim["not_established"] else "")
    if labels and set(labels) <= set(scales):
        told += f" ({listed(dict.fromkeys(labels))})"
    return Answer(claim["verdict"], told)


def elsewhere(shipped: Sequence[Shipped], claim: Mapping[str, Any]) -> list[tuple[Shipped, str]]:
    """The other shipped reports in which a claim has another verdict, with that."""
    return [
        (one, answer.told)
        for one in shipped
        if not one.here
        and (answer := one.answers.get(claim["number"]))
        and answer.verdict != claim["verdict"]
    ]


def differing(shipped: Sequence[Shipped]) -> str:
    """Where this report and that of the chosen reading answer otherwise; empty without such."""
    own = next((one for one in shipped if one.here), None)
    chosen = next((one for one in shipped if one.chosen), None)
    if own is None or chosen is None or not own.answers:
        return ""
    if own is not chosen:
        told = [
            f"claim {number}: here {answer.told}, there {chosen.answers[number].told}"
            for number, answer in own.answers.items()
            if number in chosen.answers and chosen.answers[number].verdict != answer.verdict
        ]
        if not told:
            return f"No claim that both test has another verdict than in {chosen.name}."
        return f"Other verdicts than in {chosen.name}: {'; '.join(told)}."
    told = []
    for one in shipped:
        both = one.answers.keys() & own.answers.keys()
        other = sorted(n for n in both if one.answers[n].verdict != own.answers[n].verdict)
        if other:
            told.append(f"{one.name} on {'claim' if len(other) == 1 else 'claims'} {_told(other)}")
    return f"Another verdict than here: {'; '.join(told)}." if told else ""


def _told(numbers: Sequence[int]) -> str:
    return listed(map(str, numbers))
