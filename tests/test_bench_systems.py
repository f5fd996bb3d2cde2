"""The command `bench systems`: the systems tables' measurements outside Snakemake."""

import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from relation.cli import main
from relation.cli.bench import growth
from relation.config import load_config, resolve
from relation.data.tokens import token_file
from relation.errors import InputError
from relation.parquet import read_origin, read_parquet
from relation.results import Results
from relation.schemas import THROUGHPUT
from relation.systems.bench.table import campaign_notes

Output = pytest.CaptureFixture[str]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "config.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)


def test_the_tables_files_and_ratios_from_one_command(elsewhere: None, capsys: Output) -> None:
    command = "bench systems --device cpu --shapes tiny --scales 10M --only fixed,linear-steady"
    assert main(command.split()) == 0
    output = capsys.readouterr().out
    campaign = resolve(load_config(Path("config.yaml")), campaign="tiny")
    results = Results(campaign)
    for benchmark in ("fixed", "linear-steady"):
        spec = campaign.benchmark(benchmark, "10M")
        path = results.systems(spec)
        assert str(path) in output.splitlines()
        assert read_origin(path)["config_hash"] == spec.config_hash
        rows = read_parquet(path, THROUGHPUT).to_pylist()
        assert {(row["status"], row["tokens"]) for row in rows} == {("PASS", "random")}
        for row in rows:
            assert f"{row['tokens_per_second']:,.0f}" in output
    assert "fixed 10M: FlashRelation over reference" in output and "5.28" in output
    assert not (results.folder / "systems" / "matched").exists()


def test_the_prepared_corpus_is_read_where_it_is_there(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    given = []

    def measured(spec, data: Path | None, path: Path) -> list[dict]:
        given.append(data)
        raise InputError("enough")

    monkeypatch.setattr("relation.systems.measure.measure", measured)
    campaign = resolve(load_config(Path("config.yaml")), campaign="tiny")
    folder = Results(campaign).data(campaign.data_of_scale("10M"))
    command = "bench systems --device cpu --shapes tiny --scales 10M"
    assert main(command.split()) == 2
    token_file(folder, "train").parent.mkdir(parents=True)
    token_file(folder, "train").touch()
    assert main(command.split()) == 2
    assert given == [None, folder]


@pytest.mark.parametrize(
    "arguments, told",
    [
        ("systems --device cpu --only fixd", "unknown systems benchmark 'fixd'"),
        ("systems --device cpu --peers cudnn", "bench systems takes no --peers"),
        ("systems --device cpu --repeats 3", "bench systems takes no --repeats"),
        ("all --device cpu --only fixed", "bench all takes no --only"),
        ("all --device cpu --output x.parquet", "bench all takes no --output"),
        ("systems --device cpu --shapes paper", "campaign paper runs on cuda; give --device cuda"),
    ],
)
def test_choices_that_it_does_not_have(
    elsewhere: None, capsys: Output, arguments: str, told: str
) -> None:
    assert main(["bench", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and not Path("results").exists()


def test_all_measures_everything_in_order(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(
        "relation.cli.bench._measure_systems", lambda campaign, only: called.append(campaign.name)
    )
    monkeypatch.setattr(
        "relation.cli.bench._compare", lambda options, campaign: called.append(options.name)
    )
    assert main(["bench", "all", "--device", "cpu"]) == 0
    assert called == ["smoke", "flash", "linear", "decoder"]


def row(context: int, seconds: float, **changes) -> dict:
    return {
        "operator": "mha", "context": context, "status": "PASS", "reason": None,
        "seconds": seconds, "decode_seconds": 1e-3, "decode_state_bytes": 64 * context,
        "disturbed": None, "sm_clock_least": 1755.0, "sm_clock_limit": 1980.0, **changes,
    }  # fmt: skip


def test_exponents_are_fitted_only_where_time_has_grown_five_times() -> None:
    flat = [row(64, 1e-3), row(128, 1.1e-3)]
    grown = [row(64 * 2**k, 1e-3 * 4**k / 16) for k in range(4, 8)]
    assert growth([*flat, *grown]) == [
        "mha: time grows as T^2.000 [2.000, 2.000] from T = 1,024 on"
    ]
    assert "undetermined, a power is fitted to 3 contexts or more" in growth(flat)[0]


def test_what_happened_is_told_below() -> None:
    gone = row(64, None, status="KILLED", reason="killed by SIGKILL", disturbed="busy")
    assert campaign_notes([gone, row(128, 1.0)]) == [
        "mha T=64: KILLED, killed by SIGKILL",
        "disturbed: busy",
        "lowest SM clock 1755 MHz (at most 1980)",
    ]
