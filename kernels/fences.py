"""Whether compiled code may hand a tile to Hopper's tensor cores before it has arrived.

wgmma reads shared memory through the asynchronous proxy. What threads wrote there themselves, by
st.shared or by cp.async once it is waited for, it may only read past a `fence.proxy.async`; what
TMA wrote has arrived with its mbarrier. Triton before 3.7.1 leaves the fence out behind the waits
of pipelined loops.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LABEL = re.compile(r"(\$?[\w$]+):")
_BRANCH = re.compile(r"(?:@(!?%\w+)\s+)?bra(?:\.uni)?\s+(\$?[\w$]+);")
_EVENTS = {
    "fence": re.compile(r"fence\.proxy\.async"),
    # Only the copies of threads: the bulk ones of TMA have groups of their own.
    "copied": re.compile(r"cp\.async\.wait_(?:group|all)"),
    "stored": re.compile(r"(?:st\.shared|stmatrix)"),
    "product": re.compile(r"wgmma\.mma_async"),
}
_ENDS = re.compile(r"(?:@!?%\w+\s+)?(?:ret|exit|trap);")


@dataclass
class _Block:
    """Instructions without a jump into or out of their middle."""

    events: list[tuple[str, int]] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    falls_through: bool = True


@dataclass(frozen=True)
class Unfenced:
    """A product that may read what a thread wrote; `line` counts the PTX's lines from one.

    written: "copied" by cp.async or "stored" by st.shared.
    """

    line: int
    written: str


def count_products(ptx: str) -> int:
    """How many wgmma instructions there are."""
    return len(_EVENTS["product"].findall(ptx))


def unfenced_products(ptx: str) -> list[Unfenced]:
    """The wgmma that some way through the code reaches from a thread's write without a fence.

    A wait for copies counts as their write. Which bytes are written is not looked at, so that a
    store of something else is reported too.
    """
    blocks = _blocks(ptx)
    names = list(blocks)
    following = dict(itertools.pairwise(names))
    reached: dict[str, frozenset[str]] = {names[0]: frozenset()}
    found, waiting = set(), [names[0]]
    while waiting:
        name = waiting.pop()
        pending = set(reached[name])
        for event, line in blocks[name].events:
            if event == "fence":
                pending.clear()
            elif event == "product":
                found |= {Unfenced(line, written) for written in pending}
            else:
                pending.add(event)
        after = list(blocks[name].targets)
        if blocks[name].falls_through and name in following:
            after.append(following[name])
        for target in after:
            known = reached.get(target)
            if known is None or not pending <= known:
                reached[target] = frozenset(pending | (known or set()))
                waiting.append(target)
    return sorted(found, key=lambda unfenced: (unfenced.line, unfenced.written))


def _blocks(ptx: str) -> dict[str, _Block]:
    blocks = {"entry": _Block()}
    current = blocks["entry"]
    for line, text in _statements(ptx):
        if label := _LABEL.fullmatch(text):
            current = blocks.setdefault(label[1], _Block())
        elif branch := _BRANCH.fullmatch(text):
            current.targets.append(branch[2])
            # What follows a jump that is always taken starts a block without a label.
            following = _Block()
            current.falls_through = branch[1] is not None
            blocks[f"line {line}"] = current = following
        elif _ENDS.fullmatch(text):
            current.falls_through = text.startswith("@")
            blocks[f"line {line}"] = current = _Block()
        else:
            kinds = (kind for kind, pattern in _EVENTS.items() if pattern.search(text))
            current.events.extend((kind, line) for kind in kinds)
    return blocks


def _statements(ptx: str) -> Iterator[tuple[int, str]]:
    for line, text in enumerate(ptx.splitlines(), start=1):
        bare = text.partition("//")[0].strip()
        if bare:
            yield line, bare
