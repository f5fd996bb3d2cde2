"""The calls by which a process and those that it starts change files, seen before they take place.

A seccomp filter makes Linux hold such a call until whoever has the filter's descriptor lets it go
on. Native code and child processes are thus seen as Python is. For Linux on x86-64.
"""

import ctypes
import fcntl
import os
import platform
import select
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# By number: the name, and which arguments name files: "d" a descriptor, "p" a path, "a" a
# descriptor of a folder with a path in it, "-" neither.
_CALLS = {
    1: ("write", "d"),
    2: ("open", "p"),
    18: ("pwrite64", "d"),
    20: ("writev", "d"),
    40: ("sendfile", "d"),
    74: ("fsync", "d"),
    75: ("fdatasync", "d"),
    76: ("truncate", "p"),
    77: ("ftruncate", "d"),
    82: ("rename", "pp"),
    83: ("mkdir", "p"),
    84: ("rmdir", "p"),
    85: ("creat", "p"),
    86: ("link", "pp"),
    87: ("unlink", "p"),
    88: ("symlink", "-p"),
    257: ("openat", "a"),
    258: ("mkdirat", "a"),
    263: ("unlinkat", "a"),
    264: ("renameat", "aa"),
    265: ("linkat", "aa"),
    266: ("symlinkat", "-a"),
    285: ("fallocate", "d"),
    296: ("pwritev", "d"),
    316: ("renameat2", "aa"),
    326: ("copy_file_range", "--d"),
    328: ("pwritev2", "d"),
}
_FLAGS_OF = {2: 1, 257: 2}  # which argument of open and openat holds the flags
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SYNCS = {"fsync", "fdatasync"}

# linux/seccomp.h, linux/filter.h, linux/audit.h
_SECCOMP, _SET_FILTER, _NO_NEW_PRIVS = 317, 1, 38
_LISTENER_UNINTERRUPTED = 1 << 3 | 1 << 5
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_ALLOW, _NOTIFY, _X86_64 = 0x7FFF0000, 0x7FC00000, 0xC000003E
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16


def can_watch() -> bool:
    """Whether this machine's calls are those known here."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def _program() -> bytes:
    """The filter, for the kernel's small machine: code, jump if true, jump if false, operand."""
    steps = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_LOAD, 0, 0, _NUMBER_AT))
    for number in _CALLS:
        if number in _FLAGS_OF:
            at = _ARGUMENTS_AT + 8 * _FLAGS_OF[number]
            steps += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, at), (_ANY_BIT, 0, 1, _CHANGES)]
            steps += [(_RETURN, 0, 0, _NOTIFY), (_RETURN, 0, 0, _ALLOW)]
        else:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NOTIFY)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def hold_calls() -> int:
    """Have this process's calls held from now on; the descriptor for `held_calls` elsewhere.

    Raises OSError where Linux refuses.
    """
    libc, code = ctypes.CDLL(None, use_errno=True), _program()
    text = ctypes.create_string_buffer(code)
    program = struct.pack("=H6xQ", len(code) // 8, ctypes.addressof(text))
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        descriptor = libc.syscall(_SECCOMP, _SET_FILTER, _LISTENER_UNINTERRUPTED, program)
        if descriptor >= 0:
            return descriptor
    raise OSError(ctypes.get_errno(), "seccomp takes no filter")


@dataclass(frozen=True)
class Call:
    """A call that is held.

    paths: absolute, of the files that it changes; descriptor: where /proc has the file that is
    open, of calls on an open file.
    """

    name: str
    paths: tuple[str, ...]
    descriptor: str | None


def _decoded(process: int, number: int, arguments: tuple[int, ...]) -> Call:
    name, kinds = _CALLS[number]
    paths, descriptor, place = [], None, 0
    for kind in kinds:
        if kind == "d":
            descriptor = f"/proc/{process}/fd/{arguments[place]}"
            paths.append(os.readlink(descriptor))
        elif kind == "p":
            paths.append(_path(process, None, arguments[place]))
        elif kind == "a":
            folder = ctypes.c_int(arguments[place]).value
            place += 1
            paths.append(_path(process, folder, arguments[place]))
        place += 1
    return Call(name, tuple(paths), descriptor)


def _path(process: int, folder: int | None, address: int) -> str:
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        name = os.fsdecode(memory.read(4096).split(b"\0", 1)[0])
    here = "cwd" if folder is None or folder < 0 else f"fd/{folder}"  # AT_FDCWD is negative
    return os.path.normpath(os.path.join(os.readlink(f"/proc/{process}/{here}"), name))


def held_calls(listener: int, ended: int) -> Iterator[Call]:
    """Every call as it is held; it goes on when the next one is asked for.

    ended: a descriptor that can be read once the process is over.
    """
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while dict(poll.poll()).get(listener, 0) & select.POLLIN:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, notification)
            key, process, _, number, _, _, *arguments = _NOTIFICATION.unpack(notification)
            yield _decoded(process, number, tuple(arguments))
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(key, 0, 0, _CONTINUE))
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process was killed meanwhile
