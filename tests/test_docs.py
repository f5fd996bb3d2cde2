"""What the README and the pages under docs/ say: links lead somewhere, commands parse."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from relation.cli import build_parser

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "kernels").rglob("README.md")),
    *(ROOT / folder / "README.md" for folder in ("relation/ops", "results")),
]
CAMPAIGNS = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))["campaigns"]


def console_lines(page: Path) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


def test_the_command_line_is_listed_whole() -> None:
    choices = next(action.choices for action in build_parser()._actions if action.choices)
    listed = [line.split()[3] for line in console_lines(ROOT / "docs/campaigns.md") if line]
    of_rules = {"prepare", "measure", "inventory", "collect", "cells", "figures", "report"}
    assert set(choices) - set(listed) == of_rules


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    parser = build_parser()
    for line in console_lines(page):
        words = shlex.split(line, comments=True)
        if "relation" in words and words[words.index("relation") - 1] == "-m":
            options = parser.parse_args(words[words.index("relation") + 1 :])
            assert getattr(options, "campaign", None) in (None, *CAMPAIGNS), line
        for name in re.findall(r"campaign=(\w[\w-]*)", line):
            assert name in CAMPAIGNS, line
