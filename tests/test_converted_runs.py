"""Runs that go on from MHA's weights: the command, the jobs, their plan and values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from conftest import ROOT, copy_project, planned_jobs
from safetensors.torch import load_file
from test_report_records import make_records

from relation.cli import main
from relation.pipeline.campaign import GOES_ON
from relation.store.layouts import PROBES, RUN
from relation.store.parquet import read_origin, read_parquet
from report.values.conversion import conversion
from report.values.cost import first_crossing
from report.values.frames import CampaignRecords

OPTIONS = ("--campaign", "tiny")
SECTION = {"scales": ["10M"], "share": 0.5, "rate": 0.5}


def write_config(folder: Path, **changes) -> None:
    config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    config["campaigns"]["tiny"]["conversion"] = SECTION | changes
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained MHA run, what `convert` makes of it, and the two runs that go on from it."""
    project = tmp_path_factory.mktemp("project")
    write_config(project)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(project)
        assert main(["prepare", "sample-300", *OPTIONS]) == 0
        assert main(["train", "10M/mha/42", *OPTIONS]) == 0
        assert main(["convert", "10M/mha/42", "new/model.safetensors", *OPTIONS]) == 0
        assert main(["train", "10M/converted/42", *OPTIONS]) == 0
        assert main(["train", "10M/continued/42", *OPTIONS]) == 0
    return project


def test_the_command_writes_mhas_matrices_and_the_lambda_that_the_run_starts_with(project):
    runs = project / "results/tiny"
    mha = load_file(runs / "runs/10M/mha/42/model.safetensors")
    made = load_file(project / "new/model.safetensors")
    assert all(torch.equal(made[name], values) for name, values in mha.items())
    others = {name: made[name] for name in made.keys() - mha.keys()}
    assert all(not values.any() for name, values in others.items() if name.endswith("theta"))
    probes = read_parquet(runs / "runs/10M/converted/42/probes.parquet", PROBES).to_pandas()
    first = probes[(probes["tokens"] == 0) & (probes["metric"] == "lambda")]
    chosen = [others[f"blocks.{int(layer)}.mixer.lam"].item() for layer in first["layer"]]
    assert chosen == pytest.approx(list(first["value"]), abs=1e-6)
    assert set(chosen) != {0.5}


def test_the_run_goes_on_for_its_share_of_the_budget(project):
    folder = project / "results/tiny/runs/10M/converted/42"
    (row,) = read_parquet(folder / "record.parquet", RUN).to_pylist()
    (mha,) = read_parquet(project / "results/tiny/runs/10M/mha/42/record.parquet", RUN).to_pylist()
    assert (row["variant"], row["trained_tokens"]) == ("converted", mha["trained_tokens"] // 2)
    origins = [
        read_origin(path / "record.parquet") for path in (folder, folder.parents[1] / "mha/42")
    ]
    assert origins[0]["spec"]["start"] == origins[1]["config_hash"]
    rate = [origin["spec"]["learning_rate"] for origin in origins]
    assert rate[0] == pytest.approx(rate[1] / 2)
    looks = read_parquet(folder / "probes.parquet", PROBES).to_pandas()
    nll = looks[looks["metric"] == "validation_nll"].sort_values("tokens")["value"]
    assert abs(nll.iloc[0] - mha["final_nll"]) < 0.1 < np.log(300) - nll.iloc[0]


def test_the_control_goes_on_from_mha_itself_on_the_same_tokens(project):
    runs = project / "results/tiny/runs/10M"
    looks = {}
    for variant in ("mha", "converted", "continued"):
        read = read_parquet(runs / variant / "42/probes.parquet", PROBES).to_pandas()
        read = read[read["metric"] == "validation_nll"].sort_values("tokens")
        looks[variant] = dict(zip(read["tokens"], read["value"], strict=True))
    assert list(looks["continued"]) == list(looks["converted"])
    last = list(looks["mha"].values())[-1]
    assert looks["continued"][0] == pytest.approx(last, rel=1e-6)
    origins = [read_origin(runs / v / "42/record.parquet") for v in ("converted", "continued")]
    differ = {
        name for name, value in origins[0]["spec"].items() if origins[1]["spec"][name] != value
    }
    assert differ == {"variant", "model"}
    assert origins[0]["order_hash"] == origins[1]["order_hash"]


def test_what_cannot_be_converted_is_told_in_one_line(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    for arguments, said in (
        (("convert", "10M/mha/43", "other"), "10M/mha/43 has no model.safetensors"),
        (("convert", "10M/mha/42", "new/model.safetensors"), "is there already"),
        (("convert", "10M/converted/42", "other"), "no MHA layer"),
        (("train", "10M/converted/43"), "10M/mha/43 has no model.safetensors"),
        (("train", "30M/converted/42"), "has no run 30M/converted/42"),
    ):
        assert main([*arguments, *OPTIONS]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert not Path("other").exists()


def test_a_scale_without_pairs_is_refused(tmp_path, monkeypatch, capsys):
    write_config(tmp_path, scales=["1B"])
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *OPTIONS]) == 2
    assert "tiny.conversion: 1B does not train both mha and full" in capsys.readouterr().err


def test_the_dag_trains_mha_first_and_no_other_campaign_converts(tmp_path):
    project = copy_project(tmp_path / "copy")
    write_config(project)
    records = [f"results/tiny/runs/10M/{variant}/43/record.parquet" for variant in GOES_ON.values()]
    jobs = planned_jobs(project, "--config", "campaign=tiny", "--", *records)
    assert jobs == {"prepare": 1, "train": 3}
    config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    converting = [name for name, each in config["campaigns"].items() if "conversion" in each]
    assert converting == ["conversion"]


def gone_on(
    records: CampaignRecords, ends: dict[int, float], control: dict[int, float] | None = None
) -> CampaignRecords:
    """Runs at 10M that go in a line to an end, by seed, in a million tokens.

    The converted ones start from NLL 5, their control from 4.
    """
    rows = [
        {"scale": "10M", "variant": variant, "seed": seed, "tokens": tokens, "alike": True}
        | {"metric": "validation_nll", "value": value, "source": f"{variant}/10M/{seed}"}
        for variant, first, of in (("converted", 5.0, ends), ("continued", 4.0, control or {}))
        for seed, end in of.items()
        for tokens, value in ((0, first), (1_000_000, end))
    ]
    return replace(records, converted_probes=pd.DataFrame(rows))


def test_values_are_those_of_the_curves():
    """MHA ends at 4. Seed 42 is there after 1 / 1.25 of its tokens, 43 at its end, 44 never."""
    found = conversion(gone_on(make_records(), {42: 3.75, 43: 4.0, 44: 4.5}))
    until = found["10M", "until.converted", "value"]
    assert until.by_seed == pytest.approx({42: 0.8e6, 43: 1e6})
    assert until.reason == "seeds that never reach it: 44"
    assert found["10M", "start", "value"].value == pytest.approx(1.0)
    assert found["10M", "end", "value"].value == pytest.approx(np.mean([-0.25, 0.0, 0.5]))
    low, high = (found["10M", "end", side].value for side in ("low", "high"))
    assert high - low == pytest.approx(2 * 4.302653 * np.std([-0.25, 0, 0.5], ddof=1) / 3**0.5)
    # Full Relation's looks of seed s are s / 1000 below MHA's, a nat in 24,576 tokens.
    nothing = found["10M", "until.nothing", "value"].by_seed
    assert nothing == pytest.approx({s: 98304 - s / 1000 * 24576 for s in (42, 43, 44)})
    assert found["10M", "behind", "value"].status == "not run"


def test_the_control_is_subtracted_where_both_have_the_same_tokens():
    """A nat apart at first; seed 42 is level after 1 / 1.25 of its tokens, 43 never."""
    records = gone_on(make_records(), {42: 3.5, 43: 3.75}, {42: 3.75, 43: 3.5, 44: 3.9})
    found = conversion(records)
    alone = found["10M", "end.control", "value"].by_seed
    assert alone == pytest.approx({42: -0.25, 43: -0.5, 44: -0.1})
    assert found["10M", "behind", "value"].by_seed == pytest.approx({42: -0.25, 43: 0.25})
    level = found["10M", "until.control", "value"]
    assert level.by_seed == pytest.approx({42: 0.8e6})
    assert level.reason == "seeds that never reach it: 43"


def test_a_loss_that_no_run_reaches_is_said():
    found = conversion(gone_on(make_records(), {42: 4.5, 43: 4.1}))
    assert found["10M", "until.converted", "value"].status == "not reached"
    assert {cell.status for cell in conversion(make_records()).values()} == {"not run"}
    looks = pd.DataFrame({"tokens": [0, 10], "value": [3.0, 2.0]})
    assert [first_crossing(target, looks).tokens for target in (3.5, 1.0)] == [0.0, None]
