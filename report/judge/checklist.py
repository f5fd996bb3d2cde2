"""The reproducibility checklists of NeurIPS and of ACM's artifact appendix, from the records.

What no record can answer, such as a question about the paper's authors, is answered "NA" and says
why; nothing is claimed that a record does not hold.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from relation.data.recipes import BOOKS
from relation.machine.progress import duration
from relation.pipeline.cost import disk_gib, training_gib
from report.judge.chosen import CHOSE
from report.judge.claims import Judged
from report.values.frames import CampaignRecords
from report.values.gaps import KINDS, by_job
from report.values.likeness import Likeness
from report.values.numbers import spans

Row = dict[str, str]
_AUTHORS = "A question to the paper's authors; this is a reproduction."
# Kinds of corpora whose texts are in the public domain.
_PUBLIC_DOMAIN = ("shipped", "recipe")
_OF_THE_TEXT = "A question about the paper's text; this campaign measures."


class _Facts:
    """What the answers are made of."""

    def __init__(self, records: CampaignRecords, judged: Sequence[Judged]) -> None:
        self.page, self.records = records.page, records
        # Those of the matrix and of the pairs beyond it.
        runs = [frame for frame in (records.runs, records.further_runs) if len(frame)]
        self.runs = pd.concat(runs) if runs else records.runs
        self.claims = len(judged)
        self.verdicts = Counter(claim.verdict for claim in judged)
        self._unsure = Counter(claim.verdict for claim in judged if claim.not_established)
        self.lacking = by_job(records.missing.to_dict("records"))
        self.gaps = Counter(KINDS.get(row["kind"], row["kind"]) for row in self.lacking)

    def counted(self, counter: Counter) -> str:
        return ", ".join(f"{count} {name}" for name, count in counter.items())

    @property
    def ledger(self) -> str:
        """How many claims have each verdict."""
        return ", ".join(
            f"{count} {verdict}"
            + (f" ({self._unsure[verdict]} of them not established)" * bool(self._unsure[verdict]))
            for verdict, count in self.verdicts.items()
        )

    @property
    def commands(self) -> str:
        return self.page["commands"]["Everything"]

    @property
    def devices(self) -> str:
        return "; ".join(self.page["devices"]) or "no record names a device"

    @property
    def public_domain(self) -> bool:
        """Whether every text is part of the project or of the books that it makes."""
        return all(corpus["kind"] in _PUBLIC_DOMAIN for corpus in self.page["corpora"])

    @property
    def corpora(self) -> str:
        kinds = {
            "huggingface": "from the Hugging Face hub at a fixed revision",
            "shipped": "shipped with the code",
            "recipe": f"{BOOKS.books} public-domain books, which corpus=books makes from "
            f"{BOOKS.repository} at a fixed commit",
            "files": "local files, which are not shipped",
        }
        found = (f"{c['title']}, {kinds[c['kind']]}" for c in self.page["corpora"])
        return "; ".join(dict.fromkeys(found))

    @property
    def versions(self) -> str:
        found = self.page["origin"]["versions"]
        return ", ".join(f"{name} {version}" for name, version in found.items())

    @property
    def seeds(self) -> str:
        """Those of the matrix, and those of the pairs beyond it."""
        told = ", ".join(map(str, sorted(set(self.records.runs["seed"])))) or "none"
        further = spans(set(self.records.further_runs["seed"]))
        return f"{told}, of further pairs {further}" if further else told

    @property
    def hours(self) -> str:
        if "seconds" not in self.runs or self.runs.empty:
            return "no finished run is recorded"
        seconds = self.runs["seconds"]
        return (
            f"{len(self.runs)} runs trained for {duration(seconds.sum())} of wall time in all, the "
            f"longest for {duration(seconds.max())}; {self._shared}; data, evaluation, diagnostics "
            "and benchmarks come on top"
        )

    @property
    def _shared(self) -> str:
        """The time of all processes of the runs, each of which has a GPU where there are any."""
        known = self.runs[self.runs["processes"].notna()]
        out = len(self.runs) - len(known)
        if known.empty:
            return "how many processes shared a run changed or is not recorded"
        unit, units = ("process", "processes") if self._peaks.empty else ("GPU", "GPUs")
        most, time = int(known["processes"].max()), (known["seconds"] * known["processes"]).sum()
        told = f"{duration(time)} of {unit} time (seconds × processes)"
        told += f", up to {most} {units} a run" if most > 1 else f", one {unit} a run"
        if out:
            runs = f"{out} run{'s' * (out != 1)}"
            told += f", without {runs} whose number of processes changed or is not recorded"
        return told

    @property
    def disk(self) -> str:
        """Of all planned runs, run or not, as `plan` counts it."""
        models = self.records.models
        if models.empty:
            return "no model is counted yet"
        counted = models.set_index(["scale", "variant"])["parameters"].to_dict()

        def sizes(runs: pd.DataFrame, kind: str) -> Iterator[tuple[str, int]]:
            keys = [*zip(runs["scale"], runs["variant"], strict=True)]
            keys += [(row["scale"], row["variant"]) for row in self.lacking if row["kind"] == kind]
            return ((variant, int(counted[scale, variant])) for scale, variant in keys)

        records = self.records
        matrix, further = (sizes(records.runs, "run"), sizes(records.further_runs, "further run"))
        of_readings = (int(counted[scale, variant]) for scale, variant in self.page["reading_runs"])
        gib = training_gib(matrix) + disk_gib(count for _, count in further) + disk_gib(of_readings)
        return f"{gib:.2f} GiB for checkpoints and resume states; the corpora come on top"

    @property
    def memory(self) -> str:
        if self._peaks.empty:
            return "these devices do not count memory"
        return f"a run allocated at most {self._peaks.max():.3g} GiB on its first GPU"

    @property
    def _peaks(self) -> pd.Series:
        """Peak memory in GiB of the runs on devices that count it, which are GPUs."""
        if "peak_memory_gib" not in self.runs:
            return pd.Series(dtype=float)
        return self.runs["peak_memory_gib"].dropna().astype(float)

    @property
    def left(self) -> str:
        """What is planned and not there."""
        return ", ".join(f"{what} ({count})" for what, count in self.gaps.items()) or "nothing"

    @property
    def freshness(self) -> str:
        found = Counter(self.records.provenance["freshness"])
        return self.counted(found) or "no record"


def _neurips(facts: _Facts) -> Iterator[tuple[str, str, str]]:
    page = facts.page
    tested = facts.claims - facts.verdicts["not tested"] - facts.verdicts[CHOSE]
    complete = not facts.gaps
    yield (
        "Claims",
        "Yes" if tested else "No",
        f"The ledger holds {facts.claims} claims of the paper to fixed rules: {facts.ledger}.",
    )
    other = Likeness(page).differences
    said = f"Not the paper's: {other}." if other else "Models, budgets and corpora are the paper's."
    limits = " ".join(filter(None, (page["notice"], said)))
    yield "Limitations", "Yes", f"{limits} Planned and not there: {facts.left}."
    yield (
        "Theory assumptions and proofs",
        "NA",
        "The proofs are the paper's. Claims 18 and 22 to 24 check identities in the records; "
        "tests the others: test_relation_identities.py, test_rotations.py, equations.py.",
    )
    yield (
        "Experimental result reproducibility",
        "Yes",
        f"One command makes every table: {facts.commands}. Each value names its records and the "
        "command that makes them again.",
    )
    yield (
        "Open access to data and code",
        "No" if any(corpus["kind"] == "files" for corpus in page["corpora"]) else "Yes",
        f"The code is this project's. Corpora: {facts.corpora}.",
    )
    yield (
        "Experimental setting and details",
        "Yes",
        f"The configuration fixes every setting, and each record carries its own by hash; "
        f"{len(page['assumptions'])} assumptions where the paper is silent are listed.",
    )
    several = facts.runs["seed"].nunique() > 1
    yield (
        "Experiment statistical significance",
        "Yes" if several else "No",
        f"Seeds: {facts.seeds}. "
        + (
            "Means have standard deviations and 95% t intervals, differences are paired, and the "
            "ledger says which verdict a seed left out would flip."
            if several
            else "One seed has no interval."
        ),
    )
    yield (
        "Experiments compute resources",
        "Yes" if len(facts.runs) else "No",
        f"Devices: {facts.devices}; {facts.hours}; {facts.memory}.",
    )
    for item in ("Code of ethics", "Broader impacts", "Safeguards"):
        yield item, "NA", _AUTHORS
    yield (
        "Licenses for existing assets",
        "Yes" if facts.public_domain else "No",
        f"{facts.corpora}. Every document is in the public domain and has its source beside it."
        if facts.public_domain
        else f"The records name the corpora and not their licences: {facts.corpora}.",
    )
    yield (
        "New assets",
        "Yes",
        f"Code under the licence beside it, and {len(facts.records.provenance)} records, each with "
        f"its origin; {facts.freshness}.",
    )
    for item in ("Crowdsourcing and human subjects", "Institutional review board approvals"):
        yield item, "NA", "No human subjects: models are trained and measured."
    yield "Declaration of LLM usage", "NA", _OF_THE_TEXT
    yield (
        "All results, omissions named",
        "Yes" if complete else "No",
        "Every planned record is there."
        if complete
        else f"Planned and not there, each with its reason in its table: {facts.left}. "
        f"{page['omissions']}".strip(),
    )


def _acm(facts: _Facts) -> Iterator[tuple[str, str, str]]:
    page = facts.page
    variants = sorted(set(facts.records.models["variant"]))
    yield "Algorithm", ", ".join(variants), "Models that the campaign plans, counted when built."
    yield "Program", "python -m relation, snakemake", "Commands that the report prints."
    yield "Data set", facts.corpora, "As the configuration names them."
    yield "Run-time environment", facts.versions, "Versions that the records carry."
    yield "Hardware", facts.devices, "Devices that the records carry."
    yield "Execution", facts.commands, "Repeats without harm: what is done is not done again."
    yield (
        "Metrics",
        "NLL in nat/token, token reduction, structure of flow, tok/s, GiB",
        "Columns and units of the records' schemas.",
    )
    yield "Output", f"17 tables, figures, a ledger of {facts.claims} claims", page["title"]
    yield (
        "Experiments",
        f"{len(facts.runs)} runs, seeds {facts.seeds}",
        f"Planned and not there: {facts.left}.",
    )
    plan = f"python -m relation plan --campaign {page['campaign']} --published false"
    yield "Disk space required", facts.disk, f"As `{plan}` counts it before anything runs."
    yield "Time to complete", facts.hours, "Time of all updates, from the runs' records."
    yield (
        "Publicly available",
        "no address is recorded",
        f"The records carry commits: {page['origin']['commit']}.",
    )
    yield "Workflow framework", "Snakemake", facts.commands
    yield (
        "Expected results",
        facts.ledger,
        "By tolerances of cells and rules of claims that stand in files.",
    )
    yield (
        "Results replicated",
        facts.freshness,
        "Records by whether this checkout’s code and configuration made them (current).",
    )


def checklist(records: CampaignRecords, judged: Sequence[Judged]) -> list[Row]:
    """Both checklists, filled from a campaign's records and the ledger."""
    facts = _Facts(records, judged)
    names = ("standard", "item", "answer", "justification")
    return [
        dict(zip(names, (standard, *row), strict=True))
        for standard, rows in (("NeurIPS", _neurips(facts)), ("ACM", _acm(facts)))
        for row in rows
    ]
