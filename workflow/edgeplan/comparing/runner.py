"""Starts programs in turns and times them, from a process that holds next to nothing: no part of edgeplan is imported.

What a process that starts another holds counts as memory of the other until that is a program of its own, so this is one by
itself. A line on stdin is a job: `groups` of `sessions`, which run side by side; one group after the other is started, and
answers once. Then each group in turn infers for `seconds`, while the others wait, and that for so many `blocks`. A line on
stdout is what came of it: of each session the ms from exec to its first answer, the ms of later inferences by block, and the
most bytes that it held; or an `error`.

A session is a `command`, the `processors` that it may use, and whether it takes `lines` (`engines.program` says
which). One that does not says its times as JSON when it ends, as `edgeplan-run --json` does, and is started for one block.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

_LOOK_SECONDS = 0.02  # answers are looked for so often, not as each comes: looking takes a processor from what is timed
_AHEAD_SECONDS = 0.06  # inferences are asked for so far ahead
_CHUNK = 1 << 16
_LAST_WORDS = 300
_FEW = 3  # of fewer inferences in a block the first one counts, too


class FailedError(Exception):
    """Reports that a session ended, or did not answer."""


class Session:
    """A session is a program that was started, and what it has said."""

    def __init__(self, told: dict[str, Any], deadline: float) -> None:
        self.takes_lines, self.deadline = told["lines"], deadline
        self.first_ms, self.blocks, self.peak = 0.0, list[list[float]](), 0
        self._text, self._answers, self._asked, self.is_open = b"", list[dict[str, float]](), 0, True
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with this process
        os.sched_setaffinity(0, told["processors"])  # this process looks on from there, too
        self._began = self._heard = time.perf_counter()
        self.process = subprocess.Popen(  # noqa: S603  what the job names
            told["command"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0
        )
        if self.takes_lines:
            self.ask("")

    def ask(self, line: str) -> None:
        """Write a line to the program."""
        assert self.process.stdin is not None  # noqa: S101  it is a pipe
        with contextlib.suppress(BrokenPipeError):  # how it ended is said where its answer is read
            self.process.stdin.write(f"{line}\n".encode())

    def fileno(self) -> int:
        """Return the descriptor that it is heard by."""
        assert self.process.stdout is not None  # noqa: S101  it is a pipe
        return self.process.stdout.fileno()

    def hear(self) -> None:
        """Read what it has written."""
        chunk = os.read(self.fileno(), _CHUNK)
        self.is_open = bool(chunk)
        if chunk:
            self._heard = time.perf_counter()
            self._text += chunk
        while self.takes_lines and b"\n" in self._text:
            line, _, self._text = self._text.partition(b"\n")
            with contextlib.suppress(ValueError):  # engines print as they please
                if isinstance(told := json.loads(line), dict) and "what" in told:
                    raise FailedError(told["what"])
                if isinstance(told, dict) and told:
                    self._answers.append(told)
        if not self.is_open and (self.takes_lines or self._ended()):
            raise FailedError(self._how_it_ended())

    def has_begun(self) -> bool:
        """Tell whether the first answer is there: of what takes no lines, whether all are."""
        if self.takes_lines:
            if self._answers and not self.first_ms:
                self.first_ms = (self._heard - self._began) * 1e3
                self._answers.clear()
            return bool(self.first_ms)
        if self.is_open:
            return False
        told = json.loads(self._text)
        later = told["warm_ms"] if "warm_ms" in told else told["phases"][0]["run_ms"][1:]
        self.first_ms = (self._heard - self._began) * 1e3 - sum(later)
        self.blocks = [later]
        return True

    def infer_until(self, end: float) -> bool:
        """Ask for what it can do by then; tell whether it has done all, and at least once."""
        now, done = time.perf_counter(), len(self._answers)
        last = self._answers[-1]["run"] if self._answers else 0.0
        ahead = max(1 + (end - now > last), int(min(_AHEAD_SECONDS, end - now) / last)) if last else 1
        for _ in range(ahead - (self._asked - done) if now < end or not self._asked else 0):
            self.ask("run")
            self._asked += 1
        return now >= end and len(self._answers) == self._asked

    def end_block(self) -> None:
        """Keep the times of a block; the first inference finds the caches of what ran before, and does not count."""
        times = [answer["run"] * 1e3 for answer in self._answers]
        self.blocks.append(times[1:] if len(times) >= _FEW else times)
        self._answers.clear()
        self._asked = 0

    def save(self) -> bool:
        """Ask for the outputs to be written where its job says; tell whether they are."""
        if not self._asked:
            self.ask("save")
            self._asked = 1
        return bool(self._answers)

    def close(self) -> None:
        """End the program, whatever it does: some crash or hang in their own exit handlers."""
        if not self.peak:
            os.kill(self.process.pid, signal.SIGKILL)
            self._ended()
        for file in (self.process.stdin, self.process.stdout, self._said):
            if file is not None:
                file.close()

    def _ended(self) -> int:
        """Wait for its end, and note the most memory that it held; how it ended."""
        if not self.peak:
            _, status, usage = os.wait4(self.process.pid, 0)
            self.peak, self.process.returncode = usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)
        return self.process.returncode or 0

    def _how_it_ended(self) -> str:
        code = self._ended()
        self._said.seek(0)
        words = " ".join(self._said.read().decode(errors="replace").split())[-_LAST_WORDS:]
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process {how}: {words}" if words else f"the process {how}"


def _wait(sessions: list[Session], done: Callable[[Session], bool], look_seconds: float = 0.0) -> None:
    """Hear sessions until something is so of each of them."""
    while not min([done(session) for session in sessions]):
        if time.perf_counter() > sessions[0].deadline:
            raise FailedError("it had not answered when the time for it was over")
        time.sleep(look_seconds)
        for session in select.select([session for session in sessions if session.is_open], [], [], _LOOK_SECONDS)[0]:
            session.hear()


def _infer(sessions: list[Session], end: float) -> None:
    """Have the sessions of a group infer until then, each at least once."""
    _wait(sessions, lambda session: session.infer_until(end), _LOOK_SECONDS)
    for session in sessions:
        session.end_block()


def _done(job: dict[str, Any], started: list[list[Session]]) -> dict[str, Any]:
    """Do a job; what is started is appended to a list."""
    deadline = time.perf_counter() + job["patience"]
    for group in job["groups"]:
        started.append([])
        for session in group:
            started[-1].append(Session(session, deadline))
        _wait(started[-1], Session.has_begun)
    for block in range(job["blocks"]):
        for sessions in started if block % 2 == 0 else started[::-1]:
            if sessions[0].takes_lines:
                _infer(sessions, time.perf_counter() + job["seconds"])
    if job["save"]:
        for sessions in started:
            if sessions[0].takes_lines:
                _wait(sessions[:1], Session.save)
    for session in chain.from_iterable(started):
        session.close()
    return {"groups": [[{"first_ms": s.first_ms, "blocks": s.blocks, "peak": s.peak} for s in group] for group in started]}


def main() -> None:
    """Do the jobs that come, until stdin ends."""
    for line in sys.stdin:
        started = list[list[Session]]()
        try:
            found = _done(json.loads(line), started)
        except (FailedError, OSError, ValueError, KeyError) as error:
            found = {"error": str(error)}
        finally:
            for session in chain.from_iterable(started):
                session.close()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
