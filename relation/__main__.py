"""`python -m relation`: see `python -m relation --help`."""

import sys

try:
    from relation.cli import main

    status = main()
except ModuleNotFoundError as error:
    # The library installs without what its commands need.
    package = (error.name or "").partition(".")[0]
    if package in ("", "relation", "report"):
        raise
    print(
        f"error: this command needs the package {package}; `make setup` installs what all commands "
        "need, pip install '.[pipeline,report]' what most do",
        file=sys.stderr,
    )
    status = 2
sys.exit(status)
