"""What other programs read: the RO-Crate of a campaign, a corpus in Croissant, the citation."""

import io
import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlparse

import pytest
import yaml
from conftest import ROOT, refusal
from sample import SAMPLE
from test_multiverse import gathered
from test_records import results, write_run

import relation
from relation.cli import main
from relation.data import recipes
from relation.data.croissant import croissant
from relation.data.texts import read_texts
from relation.pipeline.crate import METADATA, write_crate
from relation.pipeline.gather import collect
from relation.pipeline.ledger import Ledger
from relation.pipeline.results import Results
from relation.store.files import sha256_of

__all__ = ["gathered", "results"]  # fixtures
CONTEXT = "https://w3id.org/ro/crate/1.1/context"
# The words that a crate uses, as RO-Crate 1.1 maps them: the validator has no network here.
OF_SCHEMA = """
about actionStatus additionalProperty additionalType agent author contentSize ComputerLanguage
CreateAction creator CreativeWork Dataset dateCreated datePublished description encodingFormat
endTime exampleOfWork hasPart identifier instrument license mainEntity mentions name object
Organization programmingLanguage PropertyValue publisher result SoftwareSourceCode startTime url
value version workExample
"""
TERMS = {word: f"http://schema.org/{word}" for word in OF_SCHEMA.split()} | {
    "File": "http://schema.org/MediaObject",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
    "output": "https://bioschemas.org/ComputationalWorkflow#output",
}


@pytest.fixture
def crate(results: Results, tmp_path: Path) -> Path:
    write_crate(results, tmp_path / "crate")
    return tmp_path / "crate"


def graph(crate: Path) -> dict[str, dict]:
    entities = json.loads((crate / METADATA).read_bytes())["@graph"]
    found = {entity["@id"]: entity for entity in entities}
    assert len(found) == len(entities)
    return found


def references(value: object) -> set[str]:
    """The ids that an entity's properties name."""
    if isinstance(value, list):
        return set().union(*map(references, value))
    if not isinstance(value, dict):
        return set()
    if value.keys() == {"@id"}:
        return {value["@id"]}
    return set().union(*map(references, value.values()))


def test_a_crate_holds_what_it_names(crate: Path) -> None:
    entities = graph(crate)
    files = [e for e in entities.values() if "File" in e["@type"]]
    on_disk = {p.relative_to(crate).as_posix() for p in crate.rglob("*") if p.is_file()}
    assert {entity["@id"] for entity in files} | {METADATA} == on_disk
    for entity in files:
        path = crate / entity["@id"]
        assert entity["sha256"] == sha256_of(path)
        assert int(entity["contentSize"]) == path.stat().st_size
    named = set().union(*(references({**e, "@id": None}) for e in entities.values())) - {None}
    assert {name for name in named - entities.keys() if not urlparse(name).scheme} == set()


def test_a_crate_says_what_ran_on_what(crate: Path, results: Results) -> None:
    entities = graph(crate)
    run, root = entities["#run"], entities["./"]
    assert run["instrument"] == root["mainEntity"] == {"@id": "Snakefile"}
    assert json.loads((crate / "campaign.json").read_bytes()) == results.campaign.settings
    record = entities["records/tiny/runs/10M/full/42/record.parquet"]
    told = {
        entities[p["@id"]]["name"]: entities[p["@id"]]["value"]
        for p in record["additionalProperty"]
    }
    assert told["commit"] == "abc" and told["version of python"] == "3.11"
    assert entities["Snakefile"].get("version") != "abc"
    assert record["dateCreated"] == run["startTime"] == "2026-01-01T00:00:00+00:00"
    described = json.loads((crate / "corpus-1/croissant.json").read_bytes())
    assert described["name"] == "public-domain-books-a-sample"


@pytest.mark.parametrize(
    "commit, version, said",
    [
        ("f" * 40, "f" * 40, "that wrote this crate. Each record names the commit"),
        (f"{'f' * 40}+changes", f"{'f' * 40}+changes", "has uncommitted changes"),
        ("unknown", None, "commit is unknown"),
    ],
    ids=["clean", "changed", "no git"],
)
def test_a_crates_workflow_has_the_version_of_this_checkout(
    results: Results, tmp_path: Path, monkeypatch, commit: str, version: str | None, said: str
) -> None:
    """Its records, of commit abc, may be older than the Snakefile beside them."""
    monkeypatch.setattr("relation.pipeline.crate.commit", lambda: commit)
    write_crate(results, tmp_path / "crate")
    workflow = graph(tmp_path / "crate")["Snakefile"]
    assert workflow.get("version") == version and said in workflow["description"]


def test_a_run_is_completed_once_every_record_is_there(results: Results, tmp_path: Path) -> None:
    def run(name: str) -> dict:
        write_crate(results, tmp_path / name)
        return graph(tmp_path / name)["#run"]

    whole, records = run("whole"), len(Ledger(results).records)
    assert whole["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert "records" not in whole["description"]
    last = results.campaign.runs[-1]
    write_run(results, replace(last, weight_decay=0.2), [5, 4, 3, 2, 1.5])
    stale = run("stale")
    assert "actionStatus" not in stale
    assert f"{records - 3} of the {records} records of this" in stale["description"]
    shutil.rmtree(results.run(last))
    results.models.unlink()
    partial = run("partial")
    assert "actionStatus" not in partial
    assert f"{records - 4} of the {records} records of this" in partial["description"]


def test_of_readings_each_run_counts(gathered: Results, tmp_path: Path) -> None:
    collect(gathered)
    write_crate(gathered, tmp_path / "crate")
    run, records = graph(tmp_path / "crate")["#run"], len(Ledger(gathered).records)
    assert "actionStatus" not in run and len(gathered.campaign.reading_runs) == 4
    assert f"2 of the {records + 4} records of this configuration" in run["description"]


def test_an_export_is_whole_or_not_there(results: Results, crate: Path, tmp_path: Path) -> None:
    assert "is there already" in refusal(lambda: write_crate(results, crate))
    nothing = Results(results.campaign, tmp_path / "elsewhere")
    assert "no record to export" in refusal(lambda: write_crate(nothing, tmp_path / "other"))
    results.models.write_bytes(results.models.read_bytes()[:-9])
    assert "models.parquet" in refusal(lambda: write_crate(results, tmp_path / "other"))
    assert not [path for path in tmp_path.iterdir() if "other" in path.name]


def test_the_command_exports_what_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    output = tmp_path / "crate"
    arguments = ["--campaign", "books", "--shipped", "--output", str(output)]
    assert main(["crate", *arguments]) == 0
    count = sum("/records/" in path.as_posix() for path in output.rglob("*.parquet"))
    printed = capsys.readouterr().out
    assert printed.startswith(f"{output / METADATA}: {count} records of campaign books, ")
    corpora = [e["value"] for e in graph(output).values() if e.get("name") == "corpus SHA-256"]
    assert corpora == [recipes.BOOKS.fingerprint]


def test_a_crate_is_valid(crate: Path, tmp_path: Path) -> None:
    validator = pytest.importorskip("rocrate_validator", reason="needs the extra `validators`")
    from requests.adapters import HTTPAdapter
    from requests_cache import CachedSession
    from rocrate_validator import models, services
    from urllib3 import HTTPResponse

    class Offline(HTTPAdapter):
        def send(self, request, **options):
            content = io.BytesIO(json.dumps({"@context": TERMS}).encode())
            headers = {"Content-Type": "application/ld+json"}
            answer = HTTPResponse(
                content, headers, 200, preload_content=False, request_url=request.url
            )
            return self.build_response(request, answer)

    cache = tmp_path / "cache"
    with CachedSession(str(cache)) as session:
        session.mount("https://", Offline())
        session.get(CONTEXT)
    settings = services.ValidationSettings(
        rocrate_uri=str(crate),
        profile_identifier="workflow-run-crate-0.5",
        requirement_severity=models.Severity.REQUIRED,
        offline=True,
        cache_path=cache,
    )
    found = services.validate(settings)
    assert found.passed(), [issue.message for issue in found.get_issues()]
    assert validator.__name__ and not found.skipped_checks


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("One text.", encoding="utf-8")
    (folder / "validation.jsonl").write_text('{"text": "b"}\n{"text": "c"}\n', encoding="utf-8")
    return folder


def test_a_corpus_is_described_file_by_file(texts: Path) -> None:
    told = croissant(str(texts), "Some texts")
    assert [(f["contentUrl"], f["sha256"]) for f in told["distribution"]] == [
        (name, sha256_of(texts / name)) for name in ("a.txt", "validation.jsonl")
    ]
    assert [each["@id"] for each in told["recordSet"]] == [
        "train/a.txt",
        "validation/validation.jsonl",
    ]
    sample = croissant(str(SAMPLE), "Books")["recordSet"][0]["field"]
    assert {field["name"] for field in sample} == {"text", "source", "title", "status"}


def test_a_recipe_s_corpus_has_its_source_and_licence(texts: Path, monkeypatch) -> None:
    monkeypatch.setattr(recipes, "CORPORA", texts.parent)
    texts.rename(texts.parent / "books")
    told = croissant(str(texts.parent / "books"), "Local texts")
    assert told["name"] == "public-domain-books" and "publicdomain" in told["license"]
    assert recipes.BOOKS.commit in told["url"]


def test_other_programs_read_the_documents(texts: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="needs the extra `validators`")
    for folder, rows, expected in (
        (texts, "validation/validation.jsonl", ["b", "c"]),
        (texts, "train/a.txt", ["One text."]),
        (SAMPLE, "validation/validation.parquet", list(read_texts(SAMPLE / "validation.parquet"))),
    ):
        path = folder / "croissant.json" if folder is texts else texts / "croissant.json"
        described = croissant(str(folder), "Texts")
        for each in described["distribution"]:
            each["contentUrl"] = str(folder / each["contentUrl"])
        path.write_text(json.dumps(described), encoding="utf-8")
        found = [
            next(value for key, value in row.items() if key.endswith("/text"))
            for row in mlcroissant.Dataset(str(path)).records(rows)
        ]
        assert [text.decode() for text in found] == expected


def test_the_citation_and_codemeta_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    codemeta = json.loads((ROOT / "codemeta.json").read_bytes())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert codemeta["version"] == citation["version"] == relation.__version__
    assert codemeta["name"] == citation["title"]
    assert codemeta["license"].endswith(f"/{citation['license']}")
    assert [a["name"] for a in codemeta["author"]] == [a["name"] for a in citation["authors"]]
    paper, preferred = codemeta["referencePublication"], citation["preferred-citation"]
    assert paper["name"] == preferred["title"]
    assert [(a["familyName"], a["givenName"]) for a in paper["author"]] == [
        (a["family-names"], a["given-names"]) for a in preferred["authors"]
    ]
    assert (codemeta["identifier"], codemeta["description"]) == (
        project["name"],
        project["description"],
    )
    assert codemeta["runtimePlatform"].endswith(project["requires-python"])


def test_the_citation_is_valid() -> None:
    cffconvert = pytest.importorskip("cffconvert", reason="needs the extra `validators`")
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cffconvert.Citation(text).validate()
