"""The protocol of every benchmark: one process per side, turns, and sides that fail."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from relation.bench.rounds import Answers, Conditions, Timer, Workers, median_columns
from relation.errors import InputError

CPU = torch.device("cpu")


FAULTS = {
    "memory": torch.OutOfMemoryError("Tried to allocate 20.00 GiB.\nMore lines"),
    "handle": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    "absent": InputError("no such library; install it"),
    "bug": ValueError("a bug"),
}


def meet(what: str) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what:
        raise FAULTS[what]


def planted(device: torch.device, *, met: tuple = ()):
    """A workload whose rounds take 1, 2, 3 ... seconds. `met` names a fault and when it occurs."""
    what, where, after = (*met, *("", "prepare", 0)[len(met) :])
    meet(what if where == "prepare" else "")
    answer, counted = {"pid": os.getpid(), "threads": torch.get_num_threads()}, 0
    while (yield answer) is not None:
        meet(what if where == "seconds" and counted >= after else "")
        counted += 1
        answer = float(counted)
    meet(what if where == "facts" else "")
    yield {"proven": True}


def crowded(folder: str, device: torch.device):
    """A workload on a device with room for one process; each process that holds it has a file."""
    held = Path(folder, str(os.getpid()))
    held.touch()
    try:
        if len(os.listdir(folder)) > 1:
            raise torch.OutOfMemoryError("full")
        answer = {}
        while (yield answer) is not None:
            answer = 1.0
    finally:
        held.unlink()


def together(rounds: int = 6, **workloads) -> dict[str, Answers]:
    with Workers(workloads, Conditions(CPU)) as processes:
        return processes.compare((), ["update"], rounds, warm_rounds=0)


def test_each_side_has_its_own_process_which_ends():
    by_side = together(one=planted, two=planted)
    pids = {answers.facts["pid"] for answers in by_side.values()}
    assert len(pids) == 2 and os.getpid() not in pids
    for answers in by_side.values():
        assert answers.samples == {"update": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
        assert answers.facts["proven"] and not answers.failures and not answers.alone
        assert answers.facts["threads"] == torch.get_num_threads()
        assert answers.columns("update")["status"] == "PASS"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


MET = {  # the fault of a side, and the status and reason in its rows
    "starting": (("kill",), "FAILED", "killed as the system does when memory runs out"),
    "timed": (("kill", "seconds", 2), "FAILED", "in its seconds (after 2 of 6 rounds)"),
    "ending": (("kill", "facts"), "FAILED", "in its facts"),
    "full": (("memory", "seconds", 3), "OOM", "20.00 GiB. (after 3 of 6 rounds)"),
    "no handle": (("handle",), "OOM", "ALLOC_FAILED"),
    "no library": (("absent",), "UNAVAILABLE", "no such library; install it"),
    "wrong": (("bug",), "FAILED", "ValueError: a bug"),
}


def test_what_one_side_meets_the_others_do_not_feel():
    workloads = {side: partial(planted, met=met) for side, (met, *_) in MET.items()}
    by_side = together(steady=planted, **workloads)
    assert by_side.pop("steady").samples["update"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for side, (_, status, reason) in MET.items():
        failure = by_side[side].failures["update"]
        assert failure.status == status and reason in failure.reason and "\n" not in failure.reason
        assert by_side[side].samples == {}


def test_a_side_that_died_starts_anew_with_the_next_comparison():
    workload = partial(planted, met=("kill", "seconds", 3))
    with Workers({"side": workload}, Conditions(CPU)) as processes:
        first = processes.compare((), ["update"], 6, 0)["side"]
        second = processes.compare((), ["update"], 2, 0)["side"]
    assert first.failures["update"].status == "FAILED"
    assert second.samples == {"update": [1.0, 2.0]}


def test_what_does_not_fit_beside_others_is_measured_alone(tmp_path):
    by_side = together(**dict.fromkeys(("one", "two"), partial(crowded, str(tmp_path))))
    assert all(len(answers.samples["update"]) == 6 for answers in by_side.values())
    assert any(answers.alone for answers in by_side.values())


@pytest.mark.parametrize(
    ("n", "ranks"),  # ranks from printed tables; below six values there is no interval
    [(1, None), (5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (50, (18, 33))],
)
def test_the_interval_of_a_median_is_two_order_statistics(n, ranks):
    columns = median_columns("x", [float(v) for v in range(n, 0, -1)])
    assert (columns["x_low"], columns["x_high"]) == (ranks or (None, None))


@pytest.mark.gpu
def test_conditions_of_a_gpu_are_read():
    conditions = Conditions(torch.device("cuda", 0))
    conditions.look()
    columns = conditions.columns()
    assert columns["driver"] and columns["sm_clock"] <= columns["sm_clock_limit"]


@pytest.mark.gpu
def test_a_replay_runs_all_calls_and_enough_of_them():
    device = torch.device("cuda", 0)
    count = torch.zeros(1, device=device)
    # The call keeps the host far longer than the device.
    timer = Timer(device, lambda: time.sleep(1e-3) or count.add_(1))
    before = count.item()
    timer.seconds()
    assert count.item() - before == timer.calls > 10
