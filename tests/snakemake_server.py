"""Runs Snakemake in forks of one process that has imported it, which takes most of a dry run.

Reads a line of JSON for each run: folder, arguments, environment, the file for both streams.
Answers each with a line that holds the exit code.
"""

import json
import os
import sys

# What the Snakefile's own modules import, but none of these: a project's copy brings its own.
import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pydantic  # noqa: F401
import yaml  # noqa: F401
from snakemake.cli import main

for line in sys.stdin:
    folder, arguments, environment, output = json.loads(line)
    if not (child := os.fork()):
        os.chdir(folder)
        sys.path[0], sys.argv = folder, ["snakemake", *arguments]
        os.environ.clear()
        os.environ.update(environment)
        streams = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(streams, 1)
        os.dup2(streams, 2)
        main(arguments)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
