"""Runs modules as `python -m` does, in forks of one process that has imported what they need.

Imports take most of a dry run and of a tiny campaign's jobs. The project itself is not imported: a
copy of it brings its own. `serve` is the process, `ask` its client, `write_python` a `python` for
PATH that is a client too.
"""

import importlib
import json
import os
import runpy
import select
import socket
import sys
from pathlib import Path

IMPORTED = (
    "matplotlib.pyplot",
    "pandas",
    "pyarrow.parquet",
    "pydantic",
    "scipy.stats",
    "snakemake.cli",
    "torch",
    "yaml",
)


def ask(address: str, request: tuple, *streams: int) -> int:
    """Run `_run`'s arguments with three streams there; return the exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], streams)
        connection.shutdown(socket.SHUT_WR)
        return int(connection.recv(16) or 1)


def write_python(folder: Path, address: str) -> Path:
    """An executable that hands `python -m MODULE` to the server; it does nothing else."""
    python = folder / "python"
    python.write_text(
        f"""#!{sys.executable} -IS
import os, sys
sys.path.append({str(Path(__file__).parent)!r})
from forks import ask
request = (sys.argv[2], sys.argv[3:], os.getcwd(), dict(os.environ), {sys.executable!r})
sys.exit(ask({address!r}, request, 0, 1, 2))
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    return python


def _run(module: str, arguments: list[str], folder: str, environment: dict, python: str) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0:1] = [folder, *filter(None, paths)]
    sys.executable, sys.argv = python, [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _answer(connection: socket.socket) -> None:
    """Run what a client asks for, in another fork, and tell it the exit status."""
    request, streams, _, _ = socket.recv_fds(connection, 2**16, 3)
    while more := connection.recv(2**16):
        request += more
    if not (child := os.fork()):
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _run(*json.loads(request))
        sys.exit()
    for stream in streams:
        os.close(stream)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(str(status).encode())


def serve(listener: socket.socket) -> None:
    """Answer every client, each in a fork, until standard input ends."""
    answering = set()
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if not (fork := os.fork()):
            listener.close()
            _answer(connection)
            os._exit(0)
        connection.close()
        answering = {pid for pid in answering | {fork} if not os.waitpid(pid, os.WNOHANG)[0]}


if __name__ == "__main__":
    for imported in IMPORTED:
        importlib.import_module(imported)
    sys.modules["snakemake.cli"].get_argument_parser()  # imports the plugins
    serve(socket.socket(fileno=int(sys.argv[1])))
