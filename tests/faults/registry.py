"""What a fault or a bad input is, and the verdict on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One thing that is done to a campaign.

    quick: it belongs to the tests that always run; needs: what it takes beyond the project
    ("mount", "faketime" or ""); act: does it in a sandbox and returns the line that the user saw
    and what happens next.
    """

    kind: str
    title: str
    act: Callable[[Any], tuple[str, str]]
    quick: bool
    needs: str = ""

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", "-")


CASES: list[Case] = []


def case(kind: str, title: str, quick: bool = False, needs: str = "") -> Callable:
    """Register a function as a case."""

    def register(act: Callable) -> Callable:
        CASES.append(Case(kind, title, act, quick, needs))
        return act

    return register
