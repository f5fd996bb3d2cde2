"""A campaign as a Workflow Run RO-Crate: its workflow, configuration and records in one folder.

Other programs read there what ran, on what, when, and which files came of it; the terms are those
of RO-Crate 1.1 and of the Workflow Run Crate profile 0.5.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from relation.data.croissant import croissant
from relation.errors import InputError
from relation.pipeline.hashes import PROJECT
from relation.pipeline.ledger import Ledger
from relation.pipeline.origin import commit
from relation.pipeline.results import Results, texts_of
from relation.store.files import sha256_of, write_text
from relation.store.layouts import READING_RUNS
from relation.store.parquet import read_origin, read_parquet

METADATA = "ro-crate-metadata.json"
_WORKFLOW, _CONFIGURATION, _RECORDS = "Snakefile", "campaign.json", "records/"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_LICENSE = "https://spdx.org/licenses/MIT"
_SNAKEMAKE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
_BIOSCHEMAS = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
_TYPES = {
    ".parquet": "application/vnd.apache.parquet",
    ".json": "application/json",
    ".yaml": "application/yaml",
    ".md": "text/markdown",
}
# What of a record's origin stands beside its file.
_TOLD = ("config_hash", "code_hash", "commit", "device", "order_hash")


def write_crate(results: Results, folder: Path) -> list[Path]:
    """Write a campaign's records, with what made them, as a crate into `folder`.

    The corpus is named by its hash and, where its texts are at hand, described in Croissant; it is
    not copied. Returns the records copied. Raises InputError where there is none, one is damaged,
    or `folder` is there already.
    """
    ledger = Ledger(results)
    paths = [path for path in ledger.record_files() if path.exists()]
    if not paths:
        raise InputError(f"campaign {results.campaign.name} has no record to export; run it first")
    if folder.exists():
        raise InputError(f"{folder} is there already; delete it, or give another --output")
    origins = {path: read_origin(path) for path in paths}
    partial = folder.with_name(f".{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        entities = _Crate(ledger, partial).entities(origins)
        context = ["https://w3id.org/ro/crate/1.1/context", {"sha256": "http://schema.org/sha256"}]
        text = json.dumps({"@context": context, "@graph": entities}, indent=1, ensure_ascii=False)
        write_text(partial / METADATA, text)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return paths


def _ids(entities: Iterable[Mapping[str, Any]]) -> list[dict]:
    return [{"@id": entity["@id"]} for entity in entities]


def _compact(values: list) -> Any:
    """A list, or its one value, as the specification wants it."""
    return values[0] if len(values) == 1 else values


class _Crate:
    """The folder and the entities of one crate; an entity is a mapping with an @id and a @type."""

    def __init__(self, ledger: Ledger, folder: Path):
        self.ledger, self.results, self.folder = ledger, ledger.results, folder
        self.campaign = ledger.results.campaign
        self.values: dict[str, dict] = {}

    def value(self, name: str, value: str) -> dict:
        """A reference to a PropertyValue, which equal values share."""
        key = f"#{quote(f'{name}-{value}', safe='')}"
        self.values[key] = {"@id": key, "@type": "PropertyValue", "name": name, "value": value}
        return {"@id": key}

    def file(self, place: str, content: Path, **about: Any) -> dict:
        """A file of the crate, copied from where it lies."""
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(content, target)
        return {
            "@id": place,
            "@type": "File",
            "name": place,
            "contentSize": str(target.stat().st_size),
            "encodingFormat": _TYPES.get(target.suffix, "text/plain"),
            "sha256": sha256_of(target),
            **about,
        }

    def written(self, place: str, content: Mapping, **about: Any) -> dict:
        """A JSON file of the crate, written for it."""
        source = self.folder / f"{place}.tmp"
        write_text(source, json.dumps(content, indent=1, ensure_ascii=False))
        entity = self.file(place, source, **about)
        source.unlink()
        return entity

    def record(self, path: Path, origin: Mapping[str, Any]) -> dict:
        results = self.results
        published = path.is_relative_to(results.root / "published")
        base = results.root / "published" if published else results.root
        place = path.relative_to(base).as_posix()
        told = {name: origin[name] for name in _TOLD if origin.get(name)}
        told |= {f"version of {name}": v for name, v in origin["versions"].items()}
        return self.file(
            f"{_RECORDS}{place}",
            path,
            description=f"Record of stage {origin['stage']}, of campaign {origin['campaign']}",
            dateCreated=origin["created"],
            additionalProperty=[self.value(name, str(value)) for name, value in told.items()],
        )

    def corpora(self, origins: Iterable[Mapping[str, Any]]) -> tuple[list[dict], list[dict]]:
        """References to the corpora's hashes, and the files that describe those at hand."""
        hashes = {texts for origin in origins if (texts := texts_of(origin)) is not None}
        values = [self.value("corpus SHA-256", texts) for texts in sorted(hashes)]
        titles = {spec.path: spec.title for spec in self.campaign.data.values() if spec.path}
        described = [
            self.written(
                f"corpus-{number}/croissant.json",
                croissant(path, titles[path]),
                description="The corpus in Croissant; its files' paths are relative to the texts",
            )
            for number, path in enumerate(filter(os.path.exists, sorted(titles)), 1)
        ]
        return values, described

    def made(self, origins: Mapping[Path, Mapping[str, Any]]) -> Iterator[bool]:
        """For each record of the campaign, whether it is there, made with this configuration.

        Of readings each run counts as one, whose rows the gathered files hold.
        """
        for record in self.ledger.records:
            origin = origins.get(record.path)
            yield origin is not None and not record.job.mismatch(origin)
        files = self.results.reading_files()
        there = bool(files) and all(path in origins for path in files.values())
        rows = read_parquet(files["runs"], READING_RUNS).to_pylist() if there else []
        gathered = {f"{row['reading']}/{row['variant']}/{row['seed']}": row for row in rows}
        for run in self.campaign.reading_runs:
            row = gathered.get(run.name)
            yield row is not None and not self.ledger.train(run).mismatch(
                row | {"data_origin": {"corpus_sha256": row["corpus_sha256"]}}
            )

    def outcome(self, origins: Mapping[Path, Mapping[str, Any]]) -> dict:
        """Description of the run, and its status where every record is there.

        Files cannot tell whether the rest failed, still runs or was never started.
        """
        made = [*self.made(origins)]
        about = f"{self.campaign.title}. {self.campaign.description}"
        if all(made):
            completed = "http://schema.org/CompletedActionStatus"
            return {"description": about, "actionStatus": completed}
        there = f"{sum(made)} of the {len(made)} records of this configuration are there."
        return {"description": f"{about} Not complete: {there}"}

    def entities(self, origins: Mapping[Path, Mapping[str, Any]]) -> list[dict]:
        """Every entity of the graph; writes the crate's files."""
        campaign, made = self.campaign, sorted(origin["created"] for origin in origins.values())
        latest = max(origins.values(), key=lambda origin: origin["created"])
        records = [self.record(path, origin) for path, origin in origins.items()]
        corpora, described = self.corpora(origins.values())
        configuration = self.written(
            _CONFIGURATION,
            campaign.settings,
            description="The configuration of the campaign, which the workflow reads",
            exampleOfWork={"@id": "#parameter-configuration"},
        )
        sources = [
            self.file(path.relative_to(PROJECT).as_posix(), path)
            for path in (
                *sorted((PROJECT / "workflow").rglob("*.smk")),
                *(PROJECT / name for name in ("config.yaml", "LICENSE")),
            )
        ]
        readme = self.file("README.md", PROJECT / "README.md", about={"@id": "./"})
        workflow = self.file(_WORKFLOW, PROJECT / _WORKFLOW) | {
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "name": "Reproduction of 'Ask Self, Ask Others: Relation Is All You Need'",
            **_version(),
            "programmingLanguage": {"@id": _SNAKEMAKE},
            "license": {"@id": _LICENSE},
            "creator": {"@id": "#authors"},
            "conformsTo": {"@id": _BIOSCHEMAS},
            "hasPart": _ids(sources),
            "input": {"@id": "#parameter-configuration"},
            "output": {"@id": "#parameter-records"},
        }
        parameters = [
            _parameter("configuration", "File", {"@id": _CONFIGURATION}),
            _parameter("records", "Dataset", {"@id": _RECORDS}),
        ]
        if corpora:
            workflow["input"] = [workflow["input"], {"@id": "#parameter-corpus"}]
            parameters.append(_parameter("corpus", "PropertyValue", _compact(corpora)))
            for reference in corpora:
                self.values[reference["@id"]]["exampleOfWork"] = {"@id": "#parameter-corpus"}
        run = {
            "@id": "#run",
            "@type": "CreateAction",
            "name": f"Run of campaign {campaign.name}",
            **self.outcome(origins),
            "instrument": {"@id": _WORKFLOW},
            "agent": {"@id": "#authors"},
            # Of the first and last record: the workflow itself keeps no clock.
            "startTime": made[0],
            "endTime": made[-1],
            "object": _compact([{"@id": _CONFIGURATION}, *corpora]),
            "result": {"@id": _RECORDS},
        }
        files = [workflow, readme, configuration, *sources, *described]
        root = {
            "@id": "./",
            "@type": "Dataset",
            "name": f"{campaign.title}: campaign {campaign.name}",
            "description": campaign.description,
            "datePublished": made[-1],
            "license": {"@id": _LICENSE},
            "author": {"@id": "#authors"},
            "publisher": {"@id": "#authors"},
            "conformsTo": [{"@id": profile} for profile in _PROFILES],
            "mainEntity": {"@id": _WORKFLOW},
            "mentions": {"@id": "#run"},
            "hasPart": [*_ids(files), {"@id": _RECORDS}],
        }
        folder = {
            "@id": _RECORDS,
            "@type": "Dataset",
            "name": "Records",
            "description": "Parquet with units; each file's metadata has its whole origin",
            "exampleOfWork": {"@id": "#parameter-records"},
            "hasPart": _compact(_ids(records)),
        }
        return [
            _descriptor(),
            root,
            *files,
            folder,
            *records,
            run,
            *parameters,
            *self.values.values(),
            *_contexts(latest),
        ]


def _version() -> dict:
    """Version and description of the workflow, which is copied from this checkout."""
    version = commit()
    known = {} if version == "unknown" else {"version": version}
    state = "" if known else ", whose commit is unknown"
    if version.endswith("+changes"):
        state = ", which has uncommitted changes"
    about = f"The workflow of the checkout that wrote this crate{state}."
    return known | {"description": f"{about} Each record names the commit that made it."}


def _descriptor() -> dict:
    conforms = ("https://w3id.org/ro/crate/1.1", [*_PROFILES][-1])
    return {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": [{"@id": profile} for profile in conforms],
    }


def _parameter(name: str, kind: str, examples: dict | list[dict]) -> dict:
    return {
        "@id": f"#parameter-{name}",
        "@type": "FormalParameter",
        "name": name,
        "additionalType": kind,
        "workExample": examples,
        "conformsTo": {"@id": "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"},
    }


def _contexts(latest: Mapping[str, Any]) -> list[dict]:
    """What is no part of the crate and other entities refer to."""
    site = "https://snakemake.github.io"
    return [
        {
            "@id": _SNAKEMAKE,
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "identifier": {"@id": site},
            "url": {"@id": site},
            "version": latest["versions"].get("snakemake", "unknown"),
        },
        {
            "@id": _LICENSE,
            "@type": "CreativeWork",
            "name": "MIT License",
            "description": "Use, copy, change and share, with the licence's text",
        },
        {"@id": "#authors", "@type": "Organization", "name": "The relation authors"},
        *(
            {"@id": profile, "@type": "CreativeWork", "name": name, "version": version}
            for profile, (name, version) in _PROFILES.items()
        ),
    ]
