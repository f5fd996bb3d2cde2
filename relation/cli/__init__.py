"""The command line: what Snakemake's rules call, and what a person asks of a campaign.

It stands above every other package and imports the heavy ones only in the command that needs them.
"""

import argparse
import sys
from typing import NoReturn

from relation.cli import bench, generate, inspect, jobs
from relation.errors import InputError, RelationError


class _Parser(argparse.ArgumentParser):
    """Tells a wrong call as every other bad input: in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="python -m relation",
        description="Reproduction of 'Ask Self, Ask Others: Relation Is All You Need'.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    inspect.add_commands(commands)
    bench.add_commands(commands)
    generate.add_commands(commands)
    jobs.add_commands(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status, 2 for an error that is told in one line."""
    try:
        options = build_parser().parse_args(arguments)
        options.call(options)
    except RelationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
