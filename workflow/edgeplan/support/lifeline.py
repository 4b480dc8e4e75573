"""Ends processes with the one that started them, however it ends.

A process that starts others holds the write ends of two pipes, which close when it ends and which nothing else inherits. In
their environment its descendants find where the read ends are. Each opens them for itself (`/proc/PID/fd/N`) and has the kernel
send it a signal when a pipe hangs up: SIGTERM where the holder closes the one that asks, SIGKILL where it has ended (fcntl(2),
F_SETSIG). Nobody waits in a thread or looks again and again; which thread started the process does not matter, as it does for
PR_SET_PDEATHSIG, nor how many shells and programs stand between.

`python -m edgeplan.support.lifeline MODULE ...` runs a module so that its process group ends with the holder, `--program
PROGRAM ...` a program. It imports next to nothing: workers that are measured begin with it.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import select
import signal
import sys
import threading

#: Where descendants find the lifeline of the process that they end with.
VARIABLE = "EDGEPLAN_LIFELINE"
#: The argument that has a program run instead of a module.
PROGRAM = "--program"
#: Read and write end of the pipe that asks descendants to end, and of the one that is closed when this process has ended.
_held: tuple[int, int, int, int] | None = None
_making = threading.Lock()


def address() -> str:
    """Return the lifeline of this process as the value of `VARIABLE` for its descendants; it is made when first asked for.

    It is `PID:FD:FD:INODE`; the inode tells the pipe from one of a later process of the same number.
    """
    global _held  # noqa: PLW0603  a process has one
    with _making:
        if _held is None:
            _held = (*os.pipe(), *os.pipe())  # closed on exec
        asking, _, ending, _ = _held
        return f"{os.getpid()}:{asking}:{ending}:{os.fstat(ending).st_ino}"


def end_descendants(seconds: float) -> None:
    """Ask the processes that end with this one to end, wait so many seconds, and kill those that take longer."""
    global _held
    held, _held = _held, None
    if held is not None:
        *others, ending = held
        for descriptor in others:
            os.close(descriptor)
        poll = select.poll()
        poll.register(ending, 0)  # an error as soon as nobody has the other end
        poll.poll(1e3 * seconds)
        os.close(ending)


def end_with_holder(*, asked: bool = False) -> None:
    """End this process with the one whose lifeline is named in the environment, if there is one.

    With `asked` SIGTERM comes when the holder asks; without it SIGKILL comes when the holder has ended, and nothing before.
    """
    if where := os.environ.pop(VARIABLE, ""):
        end_with(where, asked=asked)


def end_with(where: str, *, asked: bool = False, program: bool = False) -> None:
    """End this process with the holder of a lifeline (`address`), and all of its process group where it leads one.

    `asked` is as of `end_with_holder`; with `program` a program that this process executes stays bound.
    """
    holder, asking, ending, inode = where.split(":")
    owner = -os.getpid() if os.getpgrp() == os.getpid() else os.getpid()
    for number, sent in ((asking, signal.SIGTERM), (ending, signal.SIGKILL))[0 if asked else 1 :]:
        try:
            pipe = os.open(f"/proc/{holder}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            _too_late()
        fcntl.fcntl(pipe, fcntl.F_SETOWN, owner)
        fcntl.fcntl(pipe, fcntl.F_SETSIG, sent)
        fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        poll = select.poll()
        poll.register(pipe, 0)
        if poll.poll(0):  # it hung up before anybody asked for a signal
            _too_late()
        os.set_inheritable(pipe, program)
    if os.fstat(pipe).st_ino != int(inode):
        _too_late()


def _too_late() -> None:
    sys.stderr.write("the process that this one ends with has ended\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGTERM)


def fork() -> int:
    """Fork as `os.fork` does; the child ends with this process."""
    where = address()
    child = os.fork()
    if not child:
        end_with(where)
    return child


def _forget() -> None:
    """Close what a forked process has inherited: it would keep alive what ends with its parent."""
    global _held, _making
    held, _held, _making = _held, None, threading.Lock()
    for descriptor in held or ():
        os.close(descriptor)


os.register_at_fork(after_in_child=_forget)


def main() -> None:
    """Run a module or a program that ends with the process that started it."""
    if sys.argv[1] == PROGRAM:
        if where := os.environ.get(VARIABLE):  # it stays there: what the program starts may end with the holder, too
            end_with(where, program=True)
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  no shell
    end_with_holder()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
