"""Runs modules as `python -m` does, in forks of one process that has imported their libraries.

Imports take most of a small campaign's jobs. `start` starts that process, the server; `python`
is the command of a client, which hands it arguments, folder, environment and streams, and exits as
the job does. Ctrl-C reaches both; a job whose client is killed is asked to stop. Each job reads the
project's code itself, unless `start` was given the project. The server lives until its standard
input and the last job end. If it is killed, its jobs are too, and begin again as processes of their
own.
"""

import json
import os
import select
import shlex
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress

_LIBRARIES = ("GOTO_NUM", "MKL_NUM", "NUMEXPR_NUM", "OMP_NUM", "OPENBLAS_NUM", "VECLIB_MAXIMUM")
# What Snakemake sets for a job of one thread.
ONE_THREAD = {f"{library}_THREADS": "1" for library in _LIBRARIES}
# What jobs may set as they like: no library reads it when it is imported.
_FREE = {"CUDA_VISIBLE_DEVICES", "OLDPWD", "PATH", "PWD", "PYTHONPATH", "SHLVL", "_"}
_FREE |= {"TEMP", "TEMPDIR", "TMP", "TMPDIR"}
# Activating an environment exports a prompt, and a shell that runs a command removes it.
_FREE |= {"PS1", "PS2"}
# PyArrow's second allocator would start a thread.
_ADDED = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
_LONGEST_REQUEST = 2**20
_PR_SET_PDEATHSIG = 1


def start(
    libraries: Iterable[str], environment: Mapping[str, str], project: str | None = None
) -> tuple[str, object]:
    """Start a server that imports the libraries.

    environment: that of the jobs; a job whose own differs in what a library may read when it is
    imported is refused. project: a folder whose modules may be among the libraries, where nobody
    changes them while jobs run. Returns the server's address and what the caller keeps while the
    server is wanted. Raises OSError where there can be no socket among the temporary files.
    """
    import subprocess
    import tempfile

    address = os.path.join(tempfile.mkdtemp(prefix="relation-"), "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(128)
        number = listener.fileno()
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(number), *libraries],
            stdin=subprocess.PIPE,
            # No terminal: a job's standard output is none, and Python buffers by that.
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
            env={name: value for name, value in environment.items() if name != "PYTHONPATH"}
            | ({} if project is None else {"PYTHONPATH": project}),
        )
    return address, server


def python(address: str) -> str:
    """A shell's words for a `python` whose `-m MODULE` is a fork of the server's; else as ever."""
    return shlex.join([sys.executable, "-IS", __file__, address])


def ask(
    address: str,
    request: tuple[str, list[str], str, dict[str, str], str],
    streams: tuple[int, int, int],
) -> int:
    """Run a job with three streams; return its exit status, negative for the signal that ended it.

    request: module, arguments, folder, environment, `sys.executable`. Raises OSError where the
    server is gone or refuses the job.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], streams)
        answer = connection.recv(_LONGEST_REQUEST).decode() or "it was killed"
        if not answer.lstrip("-").isdecimal():
            raise ConnectionError(answer)
        return int(answer)


def _stand_for_python(address: str, arguments: list[str]) -> None:
    """Be `python` with these arguments: a fork where they are `-m MODULE` and its own."""
    if arguments[0] != "-m":  # a server of a job's own, say
        os.execv(sys.executable, [sys.executable, *arguments])
    module, *its_own = arguments[1:]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job gets it too
    request = (module, its_own, os.getcwd(), dict(os.environ), sys.executable)
    try:
        status = ask(address, request, (0, 1, 2))
    except OSError as error:
        print(f"note: not forked from a server of imports: {error}", file=sys.stderr)
        signal.signal(signal.SIGINT, before)
        os.execv(sys.executable, [sys.executable, *arguments])
    if status < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _run(module: str, arguments: list[str], folder: str, environment: dict, python: str) -> None:
    """Be `python -m MODULE`; exits as it does."""
    import runpy

    os.chdir(folder)
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder, *filter(None, paths)]
    sys.executable, sys.argv = python, [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    # A job of a job of a server has them already.
    given = _ADDED | dict(environment)
    return {name: value for name, value in given.items() if name not in _FREE}


def _serve(listener: socket.socket, libraries: list[str]) -> None:
    """Import, then fork for every client until standard input and the last job end."""
    import ctypes
    import gc
    import importlib
    import shutil

    # A terminal or a service sends these to every process.
    outlived = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in outlived]
    fixed, server = _fixed(os.environ), os.getpid()
    os.environ.update(fixed)
    for library in libraries:
        importlib.import_module(library)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("error: imports started threads, so no job is forked")
    gc.freeze()  # a job that collects garbage then copies no page of the libraries

    awaited: list = [sys.stdin, listener]
    jobs: dict[int, tuple[int, socket.socket]] = {}  # process and client, by a descriptor of it
    clients: dict[socket.socket, int] = {}  # the processes of those that live
    while awaited or jobs:
        ready = select.select([*awaited, *jobs, *clients], [], [])[0]
        if sys.stdin in ready:
            awaited = []
        for client in clients.keys() & set(ready):
            os.kill(clients.pop(client), signal.SIGTERM)  # not yet reaped, so still its number
        for descriptor in jobs.keys() & set(ready):
            process, client = jobs.pop(descriptor)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            with suppress(OSError):
                client.send(str(status).encode())
            clients.pop(client, None)
            client.close()
            os.close(descriptor)
        if listener not in ready or not awaited:
            continue
        client, _ = listener.accept()
        request, streams, _, _ = socket.recv_fds(client, _LONGEST_REQUEST, 3)
        # A client that was killed has sent nothing.
        asked = json.loads(request or '["", [], "", {}, ""]')
        if differ := sorted(name for name, _ in _fixed(asked[3]).items() ^ fixed.items()):
            with suppress(OSError):
                client.send(f"other values of {', '.join(dict.fromkeys(differ))}".encode())
            client.close()
        elif process := os.fork():
            jobs[os.pidfd_open(process)] = process, client
            clients[client] = process
        else:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            for number, handler in zip(outlived, before, strict=True):
                signal.signal(number, handler)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            others = (other.detach() for _, other in jobs.values())
            for descriptor in (listener.detach(), client.detach(), *streams, *jobs, *others):
                os.close(descriptor)
            _run(*asked)
        for stream in streams:
            os.close(stream)
    shutil.rmtree(os.path.dirname(listener.getsockname()))


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        del sys.path[0]  # this file's folder
        _serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    else:
        _stand_for_python(sys.argv[1], sys.argv[2:])
