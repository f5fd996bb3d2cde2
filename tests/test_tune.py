"""The search for launches: what it tries, what it refuses, what it prints, and the kernels' part.

Without a GPU the kernels run in Triton's interpreter, in a process of their own: the interpreter
is chosen when the kernels are imported. The test marked gpu runs the whole command.
"""

import math
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from interpreter import INTERPRETED, run_interpreted

pytest.importorskip("triton")

from relation.bench import timing
from relation.bench import tune as search
from relation.bench.tune import (
    SEARCHED,
    Found,
    Ranking,
    Target,
    candidates,
    prepare_all,
    rank,
    register_caps,
    why_unfit,
    widest_work,
)
from relation.bench.tune_report import entries_toml, notes, sections
from relation.cli import main
from relation.errors import InputError, RunError
from relation.kernels.common import SHARED_MEMORY
from relation.kernels.flash_relation.launches import Launch, load_launches
from relation.kernels.resources import Resources
from relation.ops import full_relation
from relation.verify import exact as exactness
from relation.verify.exact import RESULTS, why_wrong
from relation.verify.inputs import Shape

CPU = torch.device("cpu")
SHAPE = Shape("30M", 3, 2, 24, 16)
SHIPPED = next(e for e in load_launches()["sm_90"] if (e.bits, e.widest) == (16, 64)).in_triton()
A, B, C, D = (Launch(64, 32, 4, stages) for stages in (1, 2, 3, 4))


def target(width: int = 64) -> Target:
    shape = Shape("30M", 16, 8, 2048, width)
    return Target(shape, torch.bfloat16, CPU, replace(SHIPPED, widest=width))


class TestGrid:
    @pytest.mark.parametrize("name", SEARCHED)
    @pytest.mark.parametrize("bits", [16, 32])
    def test_every_candidate_is_a_valid_entry_and_fits_the_registers(self, name, bits):
        found = candidates(name, bits)
        assert len(found) == len(set(found)) > 10
        for launch in found:
            replace(SHIPPED, bits=bits, **{name: launch})  # refuses tiles that do not divide
            assert 32 * launch.warps * (launch.registers or 255) <= 65_536

    def test_a_cap_lets_one_more_program_share_a_multiprocessor(self):
        assert (list(register_caps(4)), list(register_caps(8))) == ([168, 128], [128])

    def test_what_does_not_fit_or_spills_is_told_without_a_gpu(self):
        assert why_unfit("forward", SHIPPED, "sm_90") is None
        greedy = replace(SHIPPED, widest=128, forward=Launch(64, 64, 4, 4))
        assert "shared memory" in why_unfit("forward", greedy, "sm_120")
        crowded = replace(SHIPPED, widest=128, p1=Launch(64, 32, 4, 2, 64))
        assert "spills" in why_unfit("p1", crowded, "sm_120")
        assert SHARED_MEMORY["sm_120"] < SHARED_MEMORY["sm_90"]

    @pytest.mark.parametrize("descriptors", [True, False])
    def test_the_variant_that_will_be_timed_is_compiled(self, monkeypatch, descriptors):
        asked = []
        found = Resources(registers=128, stack=0, shared=1024)
        monkeypatch.setattr(search, "pass_resources", lambda *given: asked.append(given) or found)
        entry = replace(SHIPPED, descriptors=descriptors)
        assert (
            why_unfit("p1", entry, "sm_90") is None and why_unfit("repair", entry, "sm_90") is None
        )
        assert asked == [("p1", "sm_90", entry, descriptors), ("repair", "sm_90", entry, False)]


def definition(inputs, dtype=None):
    """Y and the gradients of the definition, in the inputs' own dtype or another."""
    leaves = [inputs[name].detach() for name in ("p1", "p2", "info", "lam")]
    leaves = [x.to(dtype or x.dtype, copy=True).requires_grad_() for x in leaves]
    y = full_relation(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, inputs["dy"].to(y.dtype))


class TestExactness:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_the_definition_is_right(self, dtype):
        assert why_wrong(definition, SHAPE, dtype, CPU) is None

    @pytest.mark.parametrize(("times", "right"), [(1.9, True), (4.0, False)])
    def test_twice_the_yardsticks_error_is_allowed(self, times, right):
        def scaled(inputs):
            truth = definition(inputs, torch.float64)
            return [t + times * (x - t) for x, t in zip(definition(inputs), truth, strict=True)]

        assert (why_wrong(scaled, SHAPE, torch.bfloat16, CPU) is None) == right

    @pytest.mark.parametrize("which", range(len(RESULTS)))
    @pytest.mark.parametrize("fault", [0.0, 1.1, math.nan])
    def test_one_wrong_element_of_any_result_is_refused(self, which, fault):
        def faulty(inputs):
            found = [x.clone() for x in definition(inputs)]
            largest = found[which].abs() == found[which].abs().max()
            found[which][largest] *= fault
            return found

        reason = why_wrong(faulty, SHAPE, torch.float32, CPU)
        assert reason is not None and f"of {RESULTS[which]} is" in reason and "\n" not in reason

    def test_a_fault_in_masked_tiles_alone_is_refused(self):
        def faulty(inputs):
            y, *gradients = definition(inputs)
            return (y if y.shape[2] % 8 == 0 else 1.01 * y, *gradients)

        assert "at T 23" in why_wrong(faulty, SHAPE, torch.float32, CPU)

    def test_what_a_kernel_does_not_write_is_refused(self):
        kept = {}

        def lazy(inputs):
            """Leaves its last row to what the memory holds: in the second call, the right rows."""
            y, *gradients = definition(inputs)
            found = torch.empty_like(y)
            found[:, :, :-1] = y[:, :, :-1]
            kept["last"] = found[:, :, -1]
            return found, *gradients

        assert "error of Y is nan" in why_wrong(lazy, SHAPE, torch.float32, CPU)
        assert kept["last"].isnan().all()
        assert not torch.are_deterministic_algorithms_enabled()


TIMES = {A: [3.0, 3.0, 9.0], B: [1.0, 1.0, 1.0], C: [2.0, 2.0, 2.0], D: [0.1]}


class TestRanking:
    def test_the_fastest_right_launch_wins(self):
        asked = []

        def why_wrong(launch):
            asked.append(launch)
            return "dp1 is off" if launch == B else None

        other = Launch(32, 32, 4, 1)
        found = rank("p1", SHAPE, A, TIMES, 3, {other: "spills"}, why_wrong)
        assert asked == [B, C]
        assert (found.best, list(found.seconds)) == (C, [C, A])
        assert found.rejected == {other: "spills", D: "out of memory", B: "dp1 is off"}

    def test_no_right_launch_is_an_error(self):
        with pytest.raises(RunError, match="no launch runs and is right; of the shipped one: off"):
            rank("p1", SHAPE, A, TIMES, 3, {}, lambda launch: "off")

    def test_the_slow_are_not_tried_under_load_but_the_shipped_launch_is(self):
        times = {A: [9.0, 9.0, 9.0], B: [1.0, 1.2, 1.1], C: [1.38, 1.4, 1.0]}
        assert set(search.too_slow(times, A)) == {C}
        assert set(search.too_slow(times, B)) == {A, C}
        assert search.too_slow(times | {C: [1.37, 1.37, 1.37]}, A) == {}

    def test_under_a_steady_load_another_launch_may_win(self, monkeypatch):
        short = {A: [1.1] * 3, B: [1.0] * 3, C: [1.3] * 3}
        loaded, asked = {A: 2.0, B: 3.0}, []

        class Watch:
            def plan(self, call):
                return None

            def seconds(self, call, plan):
                raise AssertionError("the short rounds are given")

            def steady(self, call, seconds):
                asked.append((call, seconds))
                return [loaded[call]] * timing.STEADY_PARTS

        class Calls:
            def call(self, name, launches):
                return getattr(launches, name)

        shipped = replace(SHIPPED, forward=A, widest=64)
        goal = Target(SHAPE, torch.bfloat16, CPU, shipped)
        times = {str(launch): seconds for launch, seconds in short.items()}
        monkeypatch.setattr(search, "interleave", lambda sides, rounds: times)
        monkeypatch.setattr(search, "why_wrong", lambda *given: None)
        given = goal, "forward", {B: None, C: None}, Calls(), Watch(), 3
        assert search.time_and_rank(*given, None).best == B
        found = search.time_and_rank(*given, 4.0)
        assert found.best == A and list(found.seconds) == [A, B]
        assert found.rejected == {C: "over 1.25 times the fastest in short rounds"}
        assert asked == [(A, 2.0), (B, 2.0), (B, 2.0), (A, 2.0)]

    def test_one_shape_a_head_width_is_searched(self):
        long, short = Shape("30M", 1, 2, 128, 64), Shape("10M", 4, 2, 32, 64)
        other = Shape("100M", 1, 1, 16, 80)
        assert widest_work([short, long, other]) == ([long, other], [short])
        with pytest.raises(InputError, match="10M's head width is 8"):
            widest_work([replace(short, width=8)])


def test_jobs_run_in_processes_and_a_death_is_told():
    done = []
    assert prepare_all([4, 9], done.append, math.sqrt) == {4: 2.0, 9: 3.0}
    assert sorted(done) == [4, 9]
    with pytest.raises(RunError, match="died after 0 of 1"):
        prepare_all([signal.SIGKILL], done.append, signal.raise_signal)


def found_by_a_search() -> Found:
    fast, one = Launch(64, 64, 4, 4, 128), target()
    rankings = []
    for name in SEARCHED:
        shipped = getattr(SHIPPED, name)
        seconds = {fast: [1e-3] * 6}
        seconds |= {Launch(64, 32, 8, s): [2e-3 + 1e-4 * s] * 6 for s in range(1, 7)}
        seconds |= {shipped: [4e-3] * 6}
        rejected = {A: "spills", B: "spills", C: "the RMS error of dp2 is 1"}
        rankings.append(Ranking(name, one.shape, shipped, seconds, rejected))
    left_out = [Shape("10M", 1, 8, 64, 64)]
    return Found("A GPU", "sm_90", "bf16", [one], rankings, left_out)


def test_the_table_shows_the_best_five_and_the_shipped_launch_with_its_rank():
    (table,) = sections(found_by_a_search())
    assert table.title == "30M, (B, H, T, D) = (16, 8, 2048, 64), bf16"
    forward = [row for row in table.rows if row[0] == "forward"]
    assert [row[1] for row in forward] == ["1", "2", "3", "4", "5", "8"]
    best = ["64 x 64", "4", "4", "128", "1.0000", "0.250 [0.250, 0.250]", ""]
    assert forward[0][2:] == best
    assert forward[-1][2:] == ["64 x 64", "4", "3", "-", "4.0000", "-", "shipped"]


def test_the_notes_say_what_is_missing_and_why():
    found = found_by_a_search()
    lines = notes(found)
    assert "30M p1, out of 11: 2 spills; 1 the RMS error of dp2 is 1" in lines
    assert any(line.startswith("10M was not searched") for line in lines)
    assert not any("launches.toml has no" in line for line in lines)
    assert any("keep gluon_forward and gluon_p1 and gluon_p2_info" in line for line in lines)
    elsewhere = notes(replace(found, architecture="sm_80"))
    assert any("launches.toml has no sm_80" in line for line in elsewhere)
    assert not any("gluon" in line for line in elsewhere)


def test_the_entries_are_what_the_kernels_read(tmp_path):
    found = found_by_a_search()
    file = tmp_path / "found.toml"
    file.write_text(entries_toml(found), encoding="utf-8")
    fast = Launch(64, 64, 4, 4, 128)
    expected = replace(SHIPPED, tuned=True, forward=fast, p1=fast, p2_info=fast)
    assert expected.repair == SHIPPED.repair
    assert load_launches(file) == {"sm_90": (expected,)}
    origin = file.read_text(encoding="utf-8").splitlines()[0]
    assert origin.startswith("# A GPU, bf16, (16, 8, 2048, 64); PyTorch ") and "Triton" in origin


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("flsh", "nothing named 'flsh' to tune; choose flash"),
        ("flash --repeats 0", "repeats is 0; give at least 1"),
        ("flash --steady 0", "steady is 0.0; give seconds above 0"),
        ("flash --dtype fp8", "invalid choice"),
        ("flash --shapes none", "unknown campaign 'none'"),
        ("flash --shapes smoke", "10M's head width is 6; the kernels take 16 to 128"),
    ],
)
def test_what_cannot_be_searched_is_told_in_one_line(monkeypatch, capsys, arguments, told):
    monkeypatch.setattr("relation.kernels.why_unavailable", lambda device: None)
    monkeypatch.chdir(ROOT)
    assert main(["tune", *arguments.split()]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and told in output.err
    assert output.err.count("\n") == 1


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr("relation.kernels.why_unavailable", lambda device: f"there is no {device}")
    assert main(["tune", "flash"]) == 2
    assert capsys.readouterr().err == (
        "error: tune flash searches on an NVIDIA GPU: there is no cuda\n"
    )


@pytest.mark.skipif(INTERPRETED, reason="it would start itself")
def test_a_search_in_the_interpreter():
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="run by the test above")
class TestInterpreted:
    ENTRY = replace(load_launches()["sm_90"][-1], bits=32, widest=16)

    def test_the_kernels_run_with_the_launches_they_are_given(self, monkeypatch):
        """A search of three candidates on a CPU, of which one is given a fault."""
        wrong = Launch(16, 16, 4, 1)
        tried = [wrong, Launch(32, 32, 4, 1, 128)]
        shape = Shape("30M", 1, 1, 20, 16)
        launched = set()

        def results_with_a_fault(inputs, launches):
            launched.add(launches)
            y, dp1, *others = passes_results(inputs, launches)
            wrong_here = wrong in (launches.forward, launches.p1, launches.p2_info)
            return y, 1.01 * dp1 if wrong_here else dp1, *others

        passes_results = search.results
        monkeypatch.setattr(search, "results", results_with_a_fault)
        monkeypatch.setattr(search, "candidates", lambda name, bits: tried)
        monkeypatch.setattr(search, "prepare_all", lambda jobs, note: dict.fromkeys(jobs))
        monkeypatch.setattr(search, "interleave", lambda sides, rounds: fastest_first(sides, wrong))
        monkeypatch.setattr("relation.bench.sides.cache_bytes", lambda device: 1)
        monkeypatch.setattr("relation.bench.timing.WARM_CALLS", 1)
        monkeypatch.setattr(exactness, "deviations", partial(exactness.deviations, draws=1))
        entry = replace(self.ENTRY, forward=Launch(32, 16, 4, 1), p1=Launch(32, 16, 4, 1))
        rankings = search.search_launches([Target(shape, torch.float32, CPU, entry)], 1)
        assert [(r.name, r.best) for r in rankings] == [(name, tried[1]) for name in SEARCHED]
        assert all("error of dp1" in r.rejected[wrong] for r in rankings)
        assert len(launched) == 2 * len(SEARCHED)

    def test_a_compiled_search_is_refused(self, monkeypatch, capsys):
        monkeypatch.setattr("relation.kernels.why_unavailable", lambda device: None)
        assert main(["tune", "flash"]) == 2
        assert "unset TRITON_INTERPRET" in capsys.readouterr().err


def fastest_first(sides, wrong):
    """Every side is run; the wrong one is the fastest, the shipped one the slowest."""
    for side in sides.values():
        side()
    order = sorted(sides, key=lambda label: (label != str(wrong), "registers=128" not in label))
    return {label: [float(1 + order.index(label))] for label in sides}


@pytest.mark.gpu
def test_the_command_on_a_gpu(monkeypatch, capsys, tmp_path):
    """On a small grid: what it writes is an entry of right launches, and launches.toml stays."""
    monkeypatch.setattr(search, "_TILES", {16: ((64, 32, 4), (64, 64, 4))})
    monkeypatch.setattr(search, "_STAGES", {16: (2,)})
    monkeypatch.chdir(ROOT)
    shipped = Path("kernels/flash_relation/launches.toml").read_bytes()
    file = tmp_path / "found.toml"
    command = f"tune flash --shapes tiny --scales 100M --repeats 6 --output {file}"
    assert main(command.split()) == 0
    ((entry,),) = load_launches(file).values()
    assert (entry.bits, entry.widest, entry.tuned) == (16, 16, True)
    printed = capsys.readouterr().out
    assert "100M, (B, H, T, D) = (1, 2, 64, 16), bf16" in printed
    assert file.read_text(encoding="utf-8") in printed
    assert Path("kernels/flash_relation/launches.toml").read_bytes() == shipped
