"""What a campaign's verification records holds here, and sees what is broken on purpose."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import campaign
from torch import Tensor

from relation.cli.verified import print_verification
from relation.errors import RunError
from relation.ops import full_flow, full_relation, givens_mix, linear_relation
from relation.store import layouts as schemas
from relation.store.parquet import read_origin, read_parquet, write_parquet
from relation.verify import identities
from relation.verify.identities import BITWISE, history_errors, mixing_errors, recurrence_deviations
from relation.verify.operators import verify

CPU = torch.device("cpu")
DOUBLE = torch.float64
OWN = "Exchange does not read the token's own information"


def test_a_campaigns_own_backends_pass_every_check(tmp_path) -> None:
    verify(campaign("tiny").verification, tmp_path / "v.parquet")
    rows = read_parquet(tmp_path / "v.parquet", schemas.VERIFICATION).to_pylist()
    assert all(row["error"] <= row["allowed"] for row in rows)
    checked: dict[str, set] = {}
    for row in rows:
        checked.setdefault(row["check"], set()).add((row["operator"], row["precision"]))
    both = {("definition", "fp64"), ("tiled", "fp32")}
    assert checked == {
        "exactness": {("tiled", "fp32")},
        "identity": both,
        "mixing": {("definition", "fp64"), ("definition", "fp32")},
        "recurrence": {("expanded", "fp64"), ("chunked", "fp64"), ("chunked", "fp32")},
        "history": both | {("chunked", "fp32")},
    }
    # To the last bit, or not at all.
    assert {row["allowed"] == 0 for row in rows if BITWISE[0] in row["name"]} == {True}


def with_error(path: Path, name: str, error: float) -> None:
    """A record with another error of the first row of a name."""
    rows, origin = read_parquet(path).to_pylist(), read_origin(path)
    next(row for row in rows if row["name"].endswith(name))["error"] = error
    write_parquet(path, schemas.VERIFICATION, rows, origin)


@pytest.mark.parametrize("name, error", [("Y", 0.1), ("dp1", math.nan), (BITWISE[0], 1e-30)])
def test_the_command_prints_the_worst_error_and_fails_beyond_a_bound(
    tmp_path, capsys: pytest.CaptureFixture[str], name: str, error: float
) -> None:
    record = tmp_path / "v.parquet"
    verify(campaign("tiny").verification, record)
    print_verification(record)
    header, *lines = capsys.readouterr().out.splitlines()
    beyond = header.split().index("beyond")
    assert {line.split()[beyond] for line in lines[:-2]} == {"0"} and lines[-1] == str(record)
    with_error(record, name, error)
    with pytest.raises(RunError, match=f"1 of 116 .*that of .*{re.escape(name)}, .*{record}"):
        print_verification(record)
    lines = capsys.readouterr().out.splitlines()[1:-2]
    assert [line.split()[beyond] for line in lines].count("1") == 1


def test_records_from_before_linear_was_checked_keep_their_identity() -> None:
    known = campaign("books").verification
    other = replace(known, linear="chunked")
    assert known.linear == "flash" and other.config_hash == known.config_hash
    assert other.job_hash != known.job_hash


def stretched(info: Tensor, theta: Tensor, layer: int) -> Tensor:
    return 1.001 * givens_mix(info, theta, layer)


def sheared(info: Tensor, theta: Tensor, layer: int) -> Tensor:
    return info + 0.1 * info.roll(1, 1)


class OtherGradient(torch.autograd.Function):
    """Mixes, and hands gradients through unmixed."""

    @staticmethod
    def forward(ctx, info, theta, layer):
        return givens_mix(info, theta, layer)

    @staticmethod
    def backward(ctx, dmixed):
        return dmixed, None, None


@pytest.mark.parametrize(
    "mix, sound",
    [
        (givens_mix, {"lengths", "inner", "transpose"}),
        (stretched, set()),
        (sheared, set()),
        (OtherGradient.apply, {"lengths", "inner"}),
    ],
)
def test_mixing_that_is_not_orthogonal_is_seen(mix, sound: set[str]) -> None:
    errors = mixing_errors(mix, DOUBLE, CPU)
    held = {name for name, error in errors.items() if error <= 1e-12}
    assert held == {name for name in errors if any(word in name for word in sound)}
    assert len(errors) == 3


def written_first(p1, p2, info, g, tau=2.0, state=None):
    """Linear Relation whose state takes the current token before it is read."""
    y, C = linear_relation(p1, p2, info, g)
    S = torch.sigmoid((p1 * p2).sum(-1, keepdim=True) / (tau * p1.shape[-1] ** 0.5))
    hats = (torch.nn.functional.normalize(p, dim=-1) for p in (p1, p2))
    return y + S**2 * torch.mul(*hats).sum(-1, keepdim=True) * info, C


def kept(p1, p2, info, g):
    """Linear Relation that forgets a thousandth less."""
    return linear_relation(p1, p2, info, 0.999 * g)


@pytest.mark.parametrize("form", [written_first, kept])
def test_another_recurrence_is_seen(form) -> None:
    found = recurrence_deviations(form, torch.float32, CPU)
    assert {off.result for off in found} == {"Y", "C", "dp1", "dp2", "dinfo", "dg"}
    assert any(off.error > 2 * off.allowed for off in found if off.result in ("Y", "C"))


def linear_history(form, states: Tensor) -> dict[str, float]:
    g = identities.history_retention(DOUBLE, CPU)
    return history_errors(
        lambda *given: form(*given, g.expand_as(given[0]))[0], states, torch.ones_like(g[..., 0])
    )


def test_a_state_that_is_written_before_it_is_read_is_seen() -> None:
    states = identities.history_states(DOUBLE, CPU)
    errors = linear_history(written_first, states)
    assert errors[BITWISE[0]] == 0 and errors[OWN] > 1e-3
    errors = linear_history(linear_relation, states)
    assert errors[BITWISE[0]] == 0 and errors[OWN] <= 1e-12


def test_exchange_with_itself_and_with_the_future_is_seen() -> None:
    states = identities.history_states(DOUBLE, CPU)
    lam = torch.tensor(0.5, dtype=DOUBLE)
    share = 1 - identities.exchange_gate(*states[:2], lam)

    def with_itself(p1, p2, info):
        flow = full_flow(p1, p2, lam)
        return (
            full_relation(p1, p2, info, lam)
            + 0.01 * (1 - flow.diagonal(0, -2, -1))[..., None] * info
        )

    def with_the_future(p1, p2, info):
        return full_relation(p1, p2, info, lam) + 1e-9 * info.roll(-1, 2)

    errors = history_errors(lambda *given: full_relation(*given, lam), states, share)
    assert errors[BITWISE[0]] == 0 and errors[OWN] <= 1e-12
    assert history_errors(with_itself, states, share)[OWN] > 1e-3
    assert history_errors(with_the_future, states, share)[BITWISE[0]] > 0


def test_an_output_that_is_no_number_passes_no_check() -> None:
    states = identities.history_states(DOUBLE, CPU)
    errors = history_errors(
        lambda p1, p2, info: torch.full_like(info, torch.nan), states, torch.ones(1, 2, 136)
    )
    assert not any(error <= 1 for error in errors.values())
