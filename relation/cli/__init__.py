"""The command line: what Snakemake's rules call, and what a person asks of a campaign.

It stands above every other package and imports the heavy ones only in the command that needs them.
"""

import argparse
import os
import sys
from typing import NoReturn

from relation.cli import (
    bench,
    convert,
    corpus,
    crate,
    diagnose,
    export,
    generate,
    inspect,
    jobs,
    profile,
    report,
    scaling,
    status,
    tune,
)
from relation.errors import InputError, RelationError

# In the order in which --help lists their commands.
_MODULES = (
    inspect,
    status,
    corpus,
    bench,
    tune,
    profile,
    scaling,
    generate,
    export,
    convert,
    diagnose,
    jobs,
    report,
    crate,
)


class _Parser(argparse.ArgumentParser):
    """Tells a wrong call as every other bad input: in one line.

    Abbreviated options are rejected: status has --scales and no --scale.
    """

    def __init__(self, **options) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="python -m relation",
        description="Reproduction of 'Ask Self, Ask Others: Relation Is All You Need'.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in _MODULES:
        module.add_commands(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status.

    2 for an error that is told in one line; as a shell counts signals, 130 for Ctrl-C and 141 for
    a reader of standard output that went away.
    """
    try:
        try:
            options = build_parser().parse_args(arguments)
            options.call(options)
        finally:
            sys.stdout.flush()
    except RelationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The interpreter flushes standard output once more as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or str(error).partition("\n")[0]
        print(f"error: {where}{reason}; mend that and run the same command again", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "relation"):
            raise
        print(
            f"error: {name} is not installed here; run commands in the folder of a clone, with the "
            "environment that `make setup` makes there",
            file=sys.stderr,
        )
        return 2
    except MemoryError:
        print("error: memory is full; free some, or ask for less", file=sys.stderr)
        return 2
    return 0
