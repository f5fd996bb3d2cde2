"""The command `bench`: statistics, interleaving, the printed tables, and the command on a CPU."""

import os
import random
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from benchmarks import CASE, CPU, failed, measured
from conftest import campaign

from relation.bench import timing
from relation.bench.rounds import WARM_ROUNDS, interleave
from relation.bench.run import BENCHMARKS, run
from relation.bench.statistics import median_interval, ratio, summary
from relation.bench.table import campaign_notes, notes, sections
from relation.cli import main
from relation.cli.bench import growth
from relation.data.tokens import token_file
from relation.errors import InputError
from relation.pipeline.places import systems_path
from relation.pipeline.results import Results
from relation.store.layouts import BENCH, THROUGHPUT
from relation.store.parquet import read_origin, read_parquet

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "n, ranks",  # of printed tables; few values allow no interval
    [(1, None), (5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (50, (18, 33))],
)
def test_the_interval_of_a_median_is_two_order_statistics(n: int, ranks: tuple | None) -> None:
    values = [float(v) for v in range(1, n + 1)]
    random.Random(n).shuffle(values)
    assert median_interval(values) == ranks


def test_a_summary_is_median_and_quartiles() -> None:
    assert list(summary([5.0, 1.0, 3.0, 2.0, 4.0]).values()) == [3.0, 2.0, 4.0]
    assert set(summary([7.0]).values()) == {7.0}


def test_a_ratio_is_taken_round_by_round() -> None:
    """A clock that drifts by a factor of ten does not touch it."""
    drift = [1.0 + i for i in range(10)]
    peer = [2.0 * d * (1.01 if i % 2 else 0.99) for i, d in enumerate(drift)]
    found = ratio(peer, drift)
    assert found["ratio"] == pytest.approx(2.0)
    assert (found["ratio_low"], found["ratio_high"]) == pytest.approx((1.98, 2.02))
    with pytest.raises(ValueError):
        ratio([1.0], [1.0, 2.0])


def test_rounds_are_interleaved_in_changing_order_and_warm_ones_do_not_count() -> None:
    asked: list[str] = []

    def side(name: str) -> float:
        asked.append(name)
        return float(len(asked))

    found = interleave({name: partial(side, name) for name in "abc"}, rounds=20)
    rounds = [asked[i : i + 3] for i in range(0, len(asked), 3)]
    assert len(rounds) == 20 + WARM_ROUNDS
    assert all(sorted(members) == ["a", "b", "c"] for members in rounds)
    assert len({tuple(members) for members in rounds}) > 3
    first = 3 * WARM_ROUNDS
    assert sorted(v for values in found.values() for v in values) == list(
        range(first + 1, first + 61)
    )


def test_a_short_call_is_timed_several_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call(seconds: float) -> None:
        now[0] += seconds

    stopwatch = timing.Stopwatch(CPU)
    short, long = partial(call, 3e-5), partial(call, 0.5)
    plan = stopwatch.plan(short)
    assert plan.calls == 7
    assert stopwatch.seconds(short, plan) == pytest.approx(3e-5)
    assert stopwatch.plan(long).calls == 1
    assert stopwatch.seconds(long, stopwatch.plan(long)) == pytest.approx(0.5)


def test_the_hosts_time_is_without_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    now, queued = [0.0], [0.0]

    def launch() -> None:
        now[0] += 3e-5
        queued[0] += 0.5

    def wait(device: torch.device) -> None:
        now[0] += queued[0]
        queued[0] = 0.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "synchronize", wait)
    assert timing.Stopwatch(CPU).launching(launch) == pytest.approx(3e-5)


def test_a_steady_load_is_timed_once_it_has_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 1e-3 if now[0] < 0.5 else 2e-3

    found = timing.Stopwatch(CPU).steady(call, 1.0)
    assert found == pytest.approx([2e-3] * timing.STEADY_PARTS)
    assert 1.0 < now[0] < 2.1


def test_the_table_shows_times_ratios_and_why_something_is_missing() -> None:
    ours, theirs = [2e-3] * 6, [3e-3, 2.8e-3, 3.2e-3, 3e-3, 3e-3, 3e-3]
    rows = [
        measured(CASE, "forward", "tiled", ours, relative_error=1e-7),
        measured(CASE, "forward", "materialised", theirs, ours, relative_error=0.0),
        failed(CASE, "forward", "absent", "UNAVAILABLE", "not here"),
        measured(CASE, "forward+backward", "tiled", ours, peak_bytes=3 * 2**20),
        measured(CASE, "forward+backward", "materialised", theirs, ours, peak_bytes=2**30),
        failed(CASE, "forward+backward", "absent", "UNAVAILABLE", "not here"),
        measured(CASE, "step", "tiled", ours, tokens_per_second=1234567.0, peak_bytes=2**31),
    ]
    operator, step = sections(rows)
    assert operator.title == "10M operator, (B, H, T, D) = (2, 2, 33, 16)"
    times = ["forward ms", "ratio", "forward+backward ms", "ratio"]
    assert operator.header[:5] == ["operator", *times]
    relative = "1.50 [1.40, 1.60]"
    assert operator.rows == [
        ["tiled", "2.000", "-", "2.000", "-", "3", "-", ""],
        ["materialised", "3.000", relative, "3.000", relative, "1,024", "-", ""],
        ["absent", "-", "-", "-", "-", "-", "-", "UNAVAILABLE"],
    ]
    assert step.rows == [["tiled", "2.00", "-", "1,234,567", "2.00", ""]]
    conditions = [
        {"moment": "step", "sm_clock": 1980.0, "sm_clock_limit": 1980.0, "disturbed": None},
        {"moment": "long", "sm_clock": 1755.0, "sm_clock_limit": 1980.0, "disturbed": "busy"},
    ]
    lines = notes("tiled", rows, conditions)
    assert "absent (10M forward T 33 and 1 more): UNAVAILABLE, not here" in lines
    assert [line for line in lines if "busy" in line] == ["long: busy"]
    assert "SM clock of each part: 1980, 1755 MHz (at most 1980)" in lines


def test_bench_on_a_cpu_from_command_to_parquet(
    elsewhere: None, small_cache: None, capsys: Output
) -> None:
    command = "bench flash --device cpu --shapes tiny --scales 10M,30M --repeats 6"
    assert main(command.split()) == 0
    output = capsys.readouterr()
    assert "no kernel is measured" in output.out.splitlines()[0]
    assert "bench flash: " in output.err
    path = Path("results/bench/flash-cpu-choice.parquet")
    assert output.out.splitlines()[-1] == str(path)
    rows = read_parquet(path, BENCH).to_pylist()
    found = {(row["scale"], row["measure"], row["length"], row["peer"]) for row in rows}
    peers, passes = ("tiled", "attention", "materialised"), ("forward", "forward+backward")
    assert found == {
        *product(["10M"], (*passes, "step"), [16], peers),
        *product(["30M"], passes, [32], peers),
        *product(["30M"], ["step"], [32], peers[:2]),
        *product(["30M"], ["step"], [16], peers[::2]),
    }
    for row in rows:
        assert row["status"] == "PASS" and row["seconds"] > 0 and row["peak_bytes"] is None
        assert row["seconds_low"] <= row["seconds"] <= row["seconds_high"]
        step = row["measure"] == "step"
        assert len(row["samples"]) == (2 if step else 6)
        assert (row["relative_error"] is not None) == (row["peer"] == "tiled" and not step)
        digits = 2 if step else 3
        assert f"{1e3 * row['seconds']:.{digits}f}" in output.out
    written = read_origin(path)
    assert (written["campaign"], written["benchmark"], written["repeats"]) == ("tiny", "flash", 6)


def test_a_choice_of_measures_and_peers(small_cache: None, tmp_path: Path) -> None:
    path = tmp_path / "few.parquet"
    tiny = campaign("tiny", scales="10M")
    chosen = {"measures": ["backward"], "peers": ["attention"], "repeats": 2}
    found = run("flash", tiny.systems, tiny.settings, "cpu", path, **chosen)
    assert [(row["peer"], row["measure"]) for row in found.rows] == [
        ("tiled", "forward+backward"),
        ("attention", "forward+backward"),
    ]
    assert read_parquet(path, BENCH).num_rows == 2


@pytest.mark.parametrize(
    "choices, name",
    [
        ("", "flash"),
        ("--device cpu", "flash-cpu"),
        ("--shapes smoke", "flash-choice"),
        ("--scales 10M", "flash-choice"),
        ("--only step", "flash-choice"),
        ("--peers cudnn-attention", "flash-choice"),
        ("--repeats 6", "flash-choice"),
        ("--device cpu --repeats 50 --only step", "flash-cpu-choice"),
    ],
)
def test_a_part_never_replaces_the_whole(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch, choices: str, name: str
) -> None:
    outputs = []

    def stopped(*given, **rest) -> None:
        outputs.append(given[4])
        raise InputError("measured elsewhere")

    monkeypatch.setattr("relation.bench.run.run", stopped)
    for more in ("", " --output my.parquet"):
        main(f"bench flash {choices}{more}".split())
    assert outputs == [Path(f"results/bench/{name}.parquet"), Path("my.parquet")]


@pytest.mark.parametrize("output", ["folder", "file/new/a.parquet", "locked/a.parquet", ""])
def test_an_output_that_cannot_be_written_is_told_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").mkdir()
    (tmp_path / "file").touch()
    # The superuser may write anywhere, whatever the mode.
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "locked" and may(path, mode))
    monkeypatch.setattr("relation.bench.run.session", None)
    tiny = campaign("tiny")
    with pytest.raises(InputError, match=f"output {Path(output)}.* folder"):
        run("flash", tiny.systems, tiny.settings, "cpu", Path(output))


def test_the_tables_files_and_ratios_from_one_command(elsewhere: None, capsys: Output) -> None:
    command = "bench systems --device cpu --shapes tiny --scales 10M --only fixed,linear-steady"
    assert main(command.split()) == 0
    output = capsys.readouterr().out
    tiny = campaign("tiny")
    results = Results(tiny)
    for benchmark in ("fixed", "linear-steady"):
        spec = tiny.benchmark(benchmark, "10M")
        path = results.folder / systems_path(spec)
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

    def measured(spec, data: Path | None, path: Path, stamp: object) -> list[dict]:
        given.append(data)
        raise InputError("enough")

    monkeypatch.setattr("relation.bench.campaign.measure", measured)
    tiny = campaign("tiny")
    folder = Results(tiny).data(tiny.data_of_scale("10M"))
    command = "bench systems --device cpu --shapes tiny --scales 10M"
    assert main(command.split()) == 2
    token_file(folder, "train").parent.mkdir(parents=True)
    token_file(folder, "train").touch()
    assert main(command.split()) == 2
    assert given == [None, folder]


def test_all_measures_everything_in_order(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setitem(BENCHMARKS, "toy", BENCHMARKS["decoder"])  # registered here alone
    monkeypatch.setattr(
        "relation.cli.bench._measure_systems", lambda campaign, only: called.append(campaign.name)
    )
    monkeypatch.setattr(
        "relation.cli.bench._compare", lambda name, options, campaign: called.append(name)
    )
    monkeypatch.setattr(
        "relation.cli.bench._decode", lambda options, campaign: called.append("decode")
    )
    assert main(["bench", "all", "--device", "cpu"]) == 0
    assert called == [
        "smoke",
        "flash",
        "linear",
        "decoder",
        "layers",
        "layers-eager",
        "toy",
        "decode",
    ]


def row(context: int, seconds: float, **changes) -> dict:
    return {
        "operator": "mha", "context": context, "status": "PASS", "reason": None,
        "seconds": seconds, "decode_state_bytes": 64 * context,
        "disturbed": None, "sm_clock_least": 1755.0, "sm_clock_limit": 1980.0, **changes,
    }  # fmt: skip


def test_exponents_are_fitted_only_where_time_has_grown_five_times() -> None:
    flat = [row(64, 1e-3), row(128, 1.1e-3)]
    grown = [row(64 * 2**k, 1e-3 * 4**k / 16) for k in range(4, 8)]
    (told,) = growth([*flat, *grown])
    assert told == "mha: time grows as T^2.000 [2.000, 2.000] from T = 1,024 on"
    assert "undetermined, a power is fitted to 3 contexts or more" in growth(flat)[0]


def test_what_happened_is_told_below() -> None:
    gone = row(64, None, status="KILLED", reason="killed by SIGKILL", disturbed="busy")
    assert campaign_notes([gone, row(128, 1.0)]) == [
        "mha T=64: KILLED, killed by SIGKILL",
        "disturbed: busy",
        "lowest SM clock 1755 MHz (at most 1980)",
    ]


@pytest.mark.parametrize(
    "arguments, told",
    [
        ("flash", "bench flash measures on a CUDA GPU and PyTorch sees none here"),
        ("flsh --device cpu", "unknown benchmark 'flsh'; choose among flash"),
        ("flash --device cpu --only step,forwrd", "unknown measure 'forwrd'"),
        ("flash --device cpu --only long", "'long'; choose among forward, backward, step"),
        ("linear --device cpu --only long --scales 10M", "nothing to compare"),
        ("flash --device cpu --peers cudnn", "unknown peer 'cudnn'"),
        ("flash --device cpu --repeats 0", "repeats is 0; give at least 1"),
        ("flash --device cpu --repeats many", "invalid int value"),
        ("flash --device cpu --only step --peers tiled", "nothing to compare"),
        ("flash --device cpu --shapes none", "unknown campaign 'none'"),
        ("systems --device cpu --only fixd", "unknown systems benchmark 'fixd'"),
        ("systems --device cpu --peers cudnn", "bench systems takes no --peers"),
        ("systems --device cpu --repeats 3", "bench systems takes no --repeats"),
        ("all --device cpu --only fixed", "bench all takes no --only"),
        ("all --device cpu --output x.parquet", "bench all takes no --output"),
        ("flash --device cpu --contexts 3", "bench flash takes no --contexts"),
        ("decode --device cpu --repeats 3", "bench decode takes no --repeats"),
        ("decode --device cpu --contexts few", "--contexts few: give whole numbers"),
        ("decode --device cpu --batches 1,0", "a batch is 0; give at least 1"),
        ("decode --device cpu --peers gpt", "unknown model 'gpt'; choose among mha, full"),
        ("systems --device cpu --shapes paper", "campaign paper runs on cuda; give --device cuda"),
    ],
)
def test_what_cannot_be_measured_is_told_in_one_line(
    elsewhere: None,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    told: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", *arguments.split()]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and told in output.err
    assert output.err.count("\n") == 1
    assert not Path("results").exists()
