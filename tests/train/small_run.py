"""Trains `training.small_run` in this process: FOLDER DATA OPTIONS, options as JSON.

changes: of the specification; dies: the update in which it is killed by SIGKILL.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from training import small_run

from relation.errors import RelationError
from relation.train import run
from relation.train.step import wsd

torch.set_num_threads(1)
folder, data, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
begun = []


def schedule(*arguments) -> float:
    begun.append(arguments)
    if len(begun) == options.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    return wsd(*arguments)


run.wsd = schedule
try:
    run.train(small_run(**options.get("changes", {})), data, folder / "out", folder / "resume")
except RelationError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
print(f"updates: {len(begun)}")
