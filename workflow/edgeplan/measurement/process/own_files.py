"""A process finds copies of its own in place of the files that it maps: `command_with` starts it so.

Pages of a file are charged to the memory cgroup that touched them first. A library that this machine has in memory already
costs a new group nothing, while in a container of its own it would. So each file is copied, the copies are dropped from the
page cache, and in a mount namespace of its own the process finds the copies under the names of the files: whatever it reads
of them is charged to its group, which it joins at its beginning: what starts it is no part of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterable, Mapping

from edgeplan.support import lifeline

_NEWNS, _NEWUSER = 0x0002_0000, 0x1000_0000  # of unshare(2)
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x4_0000  # of mount(2)
_REFUSED = 97


def command_with(copies: Mapping[str, str], members: str, command: Iterable[str]) -> list[str]:
    """Return a command that waits for a byte on its standard input, then runs another one in a group, with copies of files.

    `members` is the file that lists the members of the group; the command ends with our holder.
    """
    code = f"from {__name__} import main; main()"
    return [sys.executable, "-S", "-c", code, json.dumps(dict(copies)), members, *command]


def mounts_refused(code: int) -> bool:
    """Tell whether a process of `command_with` ended since the system gives it no mounts of its own."""
    return code == _REFUSED


def main() -> None:
    """Wait, put the copies in place, join the group, and go on as the command."""
    os.read(0, 1)
    members = os.open(sys.argv[2], os.O_WRONLY | os.O_CLOEXEC)
    try:
        _place(json.loads(sys.argv[1]))
    except OSError as error:
        sys.stderr.write(f"no mounts for a process: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_REFUSED)
    if where := os.environ.get(lifeline.VARIABLE):
        lifeline.end_with(where, program=True)
    os.write(members, b"0")
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606  no shell


def _place(copies: Mapping[str, str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNS) and libc.unshare(_NEWNS | _NEWUSER):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    mounts = [("none", "/", _REC | _PRIVATE), *((copy, file, _BIND) for file, copy in copies.items())]
    for source, target, flags in mounts:
        if libc.mount(source.encode(), target.encode(), b"none", flags, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)
