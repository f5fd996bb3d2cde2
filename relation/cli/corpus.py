"""The command `corpus`: make a corpus by its recipe from a public repository."""

import argparse
from pathlib import Path

from relation.data.recipes import RECIPES, make_corpus


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "corpus",
        help="make a corpus by its recipe; corpus=NAME then reads it",
        description=(
            "Downloads the public repository at its commit, or takes a checkout or an archive of "
            "it, writes the rows by the recipe to corpora/NAME and checks their hash against the "
            "records'. What is there already is only checked. Prints the folder and SHA-256."
        ),
    )
    parser.set_defaults(call=_corpus)
    parser.add_argument("name", metavar="NAME", choices=[*RECIPES], help=", ".join(RECIPES))
    parser.add_argument(
        "--source",
        type=Path,
        metavar="PATH",
        help="a checkout of the repository, or a .tar.gz or .zip of it (default: download one)",
    )


def _corpus(options: argparse.Namespace) -> None:
    recipe = RECIPES[options.name]
    print(f"{make_corpus(recipe, options.source)}  {recipe.fingerprint}")
