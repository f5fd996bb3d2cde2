"""Faults and bad inputs: nothing finished is lost, no traceback, and it goes on.

The quick ones always run; `-m faults` adds the rest but those of whole campaigns, which
tests/fault_campaign.py runs with all others and writes to docs/faults.md.
"""

from pathlib import Path

import pytest
from conftest import ROOT
from crashes.page import CRASHES
from crashes.page import OUTCOMES as CRASH_OUTCOMES
from fault_campaign import CASES, OUTCOMES, outcome, page, unavailable
from faults.registry import Case
from faults.sandbox import make_base

from relation.store.parquet import read_origin, read_parquet

DOCS = ROOT / "docs"


def parameters() -> list:
    """Every case with its marks; the slow ones are asked for."""
    found = []
    for case in CASES:
        reason = unavailable(case)
        marks = [] if case.quick else [pytest.mark.faults]
        marks += [pytest.mark.skip(reason=reason)] if reason else []
        if not case.act.__module__.endswith("campaigns"):
            found.append(pytest.param(case, id=case.name, marks=marks))
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("faults") / "base")


@pytest.mark.parametrize("case", parameters())
def test_it_is_borne(case: Case, base: Path, tmp_path: Path) -> None:
    row = outcome(case, base, tmp_path / "box")
    assert row["borne"], "\n".join(f"{name}: {value}" for name, value in row.items())


def test_the_page_is_what_the_campaign_wrote() -> None:
    """docs/faults.md holds every case, as many as were asked for, and all were borne."""
    rows = read_parquet(DOCS / "faults.parquet", OUTCOMES).to_pylist()
    assert {row["name"] for row in rows} == {case.name for case in CASES}
    assert all(row["borne"] and not row["lost"] and not row["tracebacks"] for row in rows)
    for kind in ("fault", "input"):
        assert sum(row["kind"] == kind for row in rows) >= 25
    written = (DOCS / "faults.md").read_text(encoding="utf-8").splitlines()
    crashes = read_parquet(CRASHES, CRASH_OUTCOMES).to_pylist()
    made = page(rows, read_origin(DOCS / "faults.parquet"), crashes).splitlines()
    assert made == written
