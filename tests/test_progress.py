"""Progress: few lines where output is collected, a bar on a terminal, an estimate that settles."""

import sys
from collections.abc import Callable

import pytest

from relation.machine import progress
from relation.machine.progress import Pace, Progress, duration

Output = pytest.CaptureFixture[str]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that moves only when told by how many seconds."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


def terminal(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", kind)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (3900, "1 h 05 min"),
        (86_399, "1 d 00 h"),
        (183_600, "2 d 03 h"),
    ],
)
def test_a_duration_is_said_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_lines_are_few_and_the_last_is_there(capsys: Output, wait: Callable[[float], None]) -> None:
    """100 steps of 1 s: one line at once, one every 15 s, one at the end."""
    with Progress("run", 100, "updates") as shown:
        for _ in range(100):
            wait(1.0)
            shown.advance(1)
    lines = capsys.readouterr().err.splitlines()
    done = [int(line.split()[1].split("/")[0]) for line in lines]
    assert done == [1, 16, 31, 46, 61, 76, 91, 100]
    assert lines[0] == "run: 1/100 updates (1%)"
    assert lines[1] == "run: 16/100 updates (16%), 1 updates/s, 1 min 24 s left"
    assert lines[-1] == "run: 100/100 updates (100%), 1 updates/s, took 1 min 40 s"


def test_the_first_step_does_not_spoil_the_estimate(
    capsys: Output, wait: Callable[[float], None]
) -> None:
    """Compilation falls into it: 90 s, then a step every 2 s."""
    with Progress("run", 100, "updates") as shown:
        wait(90)
        shown.advance(1)
        for _ in range(8):
            wait(2)
            shown.advance(1, "loss 2.500")
    assert capsys.readouterr().err.splitlines() == [
        "run: 1/100 updates (1%)",
        "run: 9/100 updates (9%), loss 2.500, 0.5 updates/s, 3 min 02 s left",
    ]


def test_the_estimate_follows_the_last_minute() -> None:
    pace = Pace()
    assert pace.rate is None
    for second in range(200):
        pace.add(second, 10.0 * second)
    assert pace.rate == pytest.approx(10)
    for second in range(200, 262):
        pace.add(second, 2000 + 40.0 * (second - 200))
    assert pace.rate == pytest.approx(40, rel=0.05)


def test_what_a_run_did_before_it_was_killed_is_not_its_pace(
    capsys: Output, wait: Callable[[float], None]
) -> None:
    with Progress("run", 1000, "tokens", done=900) as shown:
        for _ in range(5):
            wait(10)
            shown.advance(10)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "run: 950/1,000 tokens (95%), 1 tokens/s, 50 s left"


def test_a_job_that_is_one_step_says_how_long_it_took(
    capsys: Output, wait: Callable[[float], None]
) -> None:
    with Progress("check", 1, "passes") as shown:
        wait(3)
        shown.advance(1, "fine")
    assert capsys.readouterr().err == "check: 1/1 passes (100%), fine, took 3 s\n"


def test_a_step_beyond_the_total_is_no_further_end(
    capsys: Output, wait: Callable[[float], None]
) -> None:
    with Progress("run", 2, "steps") as shown:
        for _ in range(6):
            wait(1)
            shown.advance(1)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_terminal_gets_a_bar(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, "xterm")
    with Progress("run", 4, "steps") as shown:
        for _ in range(4):
            shown.advance(1, "loss 1.0")
    text = capsys.readouterr().err
    assert "\r" in text and "100%" in text and "loss 1.0" in text
    assert text.endswith("\n")


def test_a_dumb_terminal_gets_lines(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, "dumb")
    with Progress("run", 1, "steps") as shown:
        shown.advance(1)
    assert "\r" not in capsys.readouterr().err
