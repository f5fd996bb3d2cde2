"""The protocol of every comparison: a process a side, turns, and what becomes of each."""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import InProcess, Quiet, compared
from conftest import campaign
from planted import Meeting, Planted, Unknown

from relation.bench import campaign as measuring
from relation.bench import decode, processes
from relation.bench.campaign import measure
from relation.bench.processes import Failure, Worker, answer
from relation.bench.rounds import Answers, Part, Session
from relation.bench.statistics import median_columns, ratio_apart
from relation.errors import InputError
from relation.store.layouts import COMPLEXITY, DECODE, THROUGHPUT
from relation.store.parquet import read_origin, read_parquet


def together(start: Callable = Worker, apart: Collection[str] = (), **sides) -> dict[str, Answers]:
    return compared(Part(sides, ["update"], 6, lambda found: [], 0, apart), start)


def test_each_side_has_a_process_of_its_own() -> None:
    found = together(one=Planted(), two=Planted())
    pids = {outcome.facts["pid"] for outcome in found.values()}
    assert len(pids) == 2 and os.getpid() not in pids
    for outcome in found.values():
        assert outcome.facts["threads"] == torch.get_num_threads()
        assert outcome.samples == {"update": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
        assert (outcome.failures, outcome.alone) == ({}, False)
    time.sleep(0.1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    "planted, status, told",
    [
        (Planted("kill"), "KILLED", "killed by SIGKILL, as the system does when memory runs out"),
        (Planted("kill", "seconds", 2), "KILLED", "in its seconds (after 2 of 6 rounds)"),
        (Planted("kill", "proof"), "KILLED", "in its proof"),
        (Planted("exit"), "KILLED", "the process ended with status 3 in its prepare"),
        (Planted("memory", "seconds", 3), "OOM", "20.00 GiB. (after 3 of 6 rounds)"),
        (Planted("absent"), "UNAVAILABLE", "no such library; install it"),
        (Unknown(), "FAILED", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ],
)
def test_what_one_side_meets_the_others_do_not_feel(planted, status: str, told: str) -> None:
    found = together(steady=Planted(), planted=planted)
    assert found["steady"].samples["update"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    failure = found["planted"].failures["update"]
    assert failure.status == status and told in failure.reason and "\n" not in failure.reason
    assert found["planted"].samples == {}


def test_a_side_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_SECONDS_TO_ANSWER", 0.3)
    found = together(hung=Planted("hang", "seconds"), steady=Planted())
    assert found["hung"].failures["update"].status == "KILLED"
    assert "so it was ended" in found["hung"].failures["update"].reason
    assert len(found["steady"].samples["update"]) == 6


def test_sides_are_prepared_at_once_where_that_is_asked_for(tmp_path: Path) -> None:
    found = together(one=Meeting(folder=tmp_path), two=Meeting(folder=tmp_path))
    assert all(len(outcome.samples["update"]) == 6 for outcome in found.values())


class Crowded(InProcess):
    """A device that holds one process and no more."""

    alive = 0

    def __init__(self, side: Planted):
        super().__init__(side)
        Crowded.alive += 1

    def ask(self, question: str, *given, watch=None):
        if question == "prepare" and Crowded.alive > 1:
            return Failure("OOM", "full")
        return super().ask(question, *given, watch=watch)

    def __exit__(self, *exception: object) -> None:
        Crowded.alive -= 1


def test_an_oom_beside_others_is_tried_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forgot = []
    monkeypatch.setattr(Quiet, "began", lambda self, ours, forget=None: forgot.append(forget))
    found = together(Crowded, ["second"], first=Planted(), second=Planted())
    # What both met stays on record.
    assert forgot == [None, True, False]
    assert [name for name, outcome in found.items() if outcome.alone] == ["second"]
    assert all(len(outcome.samples["update"]) == 6 for outcome in found.values())


def test_a_worker_that_died_says_so_again() -> None:
    with Worker(Planted("kill")) as worker:
        first = worker.ask("prepare")
        assert first.status == "KILLED" and worker.ask("proof") == first


def test_an_answer_never_raises() -> None:
    assert answer(Planted(), "no_such_question", ()).status == "FAILED"


def test_medians_with_intervals_and_ratios_of_sides_apart() -> None:
    values = [float(v) for v in range(1, 7)]
    assert median_columns("x", values) == {"x": 3.5, "x_low": 1.0, "x_high": 6.0}
    apart = ratio_apart([2 * v for v in values], values)
    assert apart == {"ratio": 2.0, "ratio_low": 2 / 6, "ratio_high": 12.0}
    assert ratio_apart([4.0], [2.0]) == {"ratio": 2.0, "ratio_low": None, "ratio_high": None}


def spec_of(benchmark: str, **changes):
    tiny = campaign("tiny")
    return replace(next(s for s in tiny.systems if s.benchmark == benchmark), **changes)


def test_whole_updates_are_timed_and_their_kernels_proven(tmp_path: Path) -> None:
    path = tmp_path / "matched.parquet"
    spec = spec_of("matched", rounds=6)
    rows = measure(spec, None, path)
    assert read_parquet(path, THROUGHPUT).num_rows == len(rows) == 3
    assert read_origin(path)["libraries"] == {}
    for row, side in zip(rows, spec.sides, strict=True):
        assert (row["status"], row["reason"], row["tokens"]) == ("PASS", None, "random")
        assert row["measured_updates"] == 6 and len(row["samples"]) == 6
        low, high = row["tokens_per_second_low"], row["tokens_per_second_high"]
        assert low <= row["tokens_per_second"] <= high
        assert low == min(row["samples"])
        assert row["raw_tokens_per_second"] > 0 and row["allocated_gib"] is None
        assert any("flash_attention" in k for k in row["kernels"]) == (side["side"] == "mha")


def test_a_planted_kill_leaves_the_rest_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, side_of = spec_of("linear-long"), measuring.measurement_of
    plants = {8: Planted("kill"), 32: Planted("memory"), 64: Planted("absent")}

    def planted(spec, side, tokens, device):
        return plants.get(side["context"]) or side_of(spec, side, tokens, device)

    compare, groups = Session.compare, []

    def watched(shared, part):
        groups.append([getattr(side, "context", None) for side in part.sides.values()])
        return compare(shared, part)

    monkeypatch.setattr(Session, "compare", watched)
    monkeypatch.setattr(measuring, "measurement_of", planted)
    rows = measure(spec, None, tmp_path / "long.parquet")
    # Of 8 to 128, those up to 16 side by side; the others can have all of the memory.
    assert groups == [[None, 16], [None], [None], [128]]
    statuses = {8: "KILLED", 16: "PASS", 32: "OOM", 64: "UNAVAILABLE", 128: "PASS"}
    assert {row["context"]: row["status"] for row in rows} == statuses
    assert rows[2]["reason"] == "Tried to allocate 20.00 GiB."
    for row in rows:
        assert (row["tokens_per_second"] is None) == (row["status"] != "PASS")


def test_complexity_times_operators_and_counts_what_decoding_keeps(tmp_path: Path) -> None:
    path = tmp_path / "complexity.parquet"
    contexts = {16, 64}
    spec = spec_of("complexity")
    spec = replace(spec, sides=[side for side in spec.sides if side["context"] in contexts])
    rows = measure(spec, None, path, start=InProcess)
    assert read_parquet(path, COMPLEXITY).num_rows == 8
    assert {row["context"] for row in rows} == contexts
    for row in rows:
        assert row["status"] == "PASS" and row["seconds"] > 0
    bytes_of = {(row["operator"], row["context"]): row["decode_state_bytes"] for row in rows}
    assert bytes_of["linear", 16] == bytes_of["linear", 64]
    assert bytes_of["full-flash", 64] == 4 * bytes_of["full-flash", 16]


def test_decode_times_a_token_of_every_model(tmp_path: Path) -> None:
    path, spec = tmp_path / "decode.parquet", spec_of("decode")
    rows = decode.measure(spec, path)
    assert read_parquet(path, DECODE).num_rows == len(rows) == len(spec.sides) == 8
    assert read_origin(path)["config_hash"] == spec.config_hash
    for row, side in zip(rows, spec.sides, strict=True):
        assert (row["model"], row["context"]) == (side["variant"], side["context"])
        assert (row["status"], row["measure"], len(row["samples"])) == ("PASS", "token", 2)


def test_a_device_that_is_not_there_is_told_before_measuring(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(processes.InputError, match="CUDA GPU"):
        measure(spec_of("matched", device="cuda"), None, tmp_path / "x.parquet")


def test_a_corpus_that_is_not_prepared_is_told_before_measuring(tmp_path: Path) -> None:
    """Not as every side's reason, in a record that would then count as done."""
    output = tmp_path / "record.parquet"
    with pytest.raises(InputError, match=r"train\.bin is missing or empty"):
        measure(spec_of("matched"), tmp_path, output)
    assert not output.exists()
