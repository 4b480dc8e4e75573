"""A plan proven from outside: a memory cgroup holds its run to the budget, and pays for all that the process has in memory.

Two limits are told apart. A budget over idle is set when the process is idle, and added to what its group uses then. A total
budget is the limit of the group from the start of the process on, as that of a container: loading the library lies within it.
The process is then `edgeplan-run`, which runs plans without Python.

Living is no proof, since what is mapped from files can be dropped and read again. A plan holds its budget where the process
lives, waits for no page of a file once all of its code has run, and no allocation hits the limit after it was idle.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.measurement.process.memory_group import Limited, NoGroupError, run_paying
from edgeplan.profiling.streaming import RunSettings, StreamRun
from edgeplan.runtime.installed import PROGRAM
from edgeplan.support.subprocesses import ending, module_command
from edgeplan.support.workers import ColdRunError, answered, last_words

#: The process that runs a plan as it is told on stdin.
WORKER = "edgeplan.measurement.process.streaming"
_ROOM_BYTES = 64 * MIB  # more than a plan takes beside what was profiled
_FAULTS = re.compile(r"(\d+) pages? waited for")
_TIMEOUT_SECONDS, _START_SECONDS = 120.0, 20.0  # one that reads its own code again and again does not start
_START_STEP = 2 * MIB


@dataclass(frozen=True, slots=True)
class Proof:
    """Tells what a run in a group that pays for everything showed of a budget.

    Attributes:
        total: the budget was the limit from the start of the process on.
        limit_bytes: of the group.
        idle_bytes: that the group used when the process was idle.
        peak_bytes: the most that it used from then on.
        major_faults: pages that the process waited for once all of its code had run.
        failures: allocations that hit the limit after it was idle.
        ended: how the process ended, where it did not live.
        exceeded: a run with room took more than the budget: none was held to it.
        reason: why nothing was proven; "" where something was.
    """

    total: bool = False
    limit_bytes: int = 0
    idle_bytes: int = 0
    peak_bytes: int = 0
    major_faults: int = 0
    failures: int = 0
    ended: str = ""
    exceeded: bool = False
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Tell whether the process lived, waited for no page, and met its limit nowhere."""
        return not (self.reason or self.ended or self.exceeded or self.major_faults or self.failures)

    @property
    def taken_bytes(self) -> int:
        """Return the bytes over idle that the group used."""
        return self.peak_bytes - self.idle_bytes


class Prover:
    """Runs plans in groups that pay for all that a process has in memory.

    Copies of the libraries lie in a folder on a disk; the process of a plan maps these files.
    """

    def __init__(self, work: Path, files: Sequence[str]) -> None:
        self._work, self._files = work, (*files, PROGRAM)
        work.mkdir(exist_ok=True)

    def over_idle(self, folder: Path, schedule: Mapping[str, Any], settings: RunSettings, budget: int) -> Proof:
        """Hold a run to a budget over what its process uses when idle.

        Where it needs more than the budget, the proof says how much, and nothing is held to the budget.

        The schedule is a plan document, the run has at least three inferences.
        """
        return _twice(
            lambda room: self._worked(folder, schedule, settings, budget + room), lambda proof: proof.taken_bytes <= budget
        )

    def contained(self, folder: Path, limit: int) -> Proof:
        """Hold `edgeplan-run` of a plan to a limit at once, whatever it needs; see `total`."""
        return _reasoned(lambda: self._run(folder, limit))

    def _worked(self, folder: Path, schedule: Mapping[str, Any], settings: RunSettings, budget: int) -> Proof:
        job = settings.job(folder, [schedule])
        command, how = module_command(WORKER), {"budget": budget, "timeout_seconds": _TIMEOUT_SECONDS}
        paid = self._paid(lambda gate: (command, json.dumps(job | {"gate": gate}).encode()), **how)
        try:
            run = answered(StreamRun, f"plan in {folder}", paid.code, paid.stdout, paid.stderr)
        except ColdRunError as error:
            return _proof(paid, 0, error.reason)
        return _proof(paid, run.later_major_faults)

    def total(self, folder: Path, limit: int) -> Proof:
        """Hold `edgeplan-run` of a plan to a limit, from the start of its process on."""
        return _twice(lambda room: self._run(folder, limit + room), lambda proof: proof.peak_bytes <= limit)

    def idle_bytes(self, folder: Path, limit: int) -> int:
        """Return the bytes that the group of `edgeplan-run` uses before the plan is opened; 0 where it does not come so far.

        The folder is of any plan, and the limit leaves it enough.
        """
        return self._run(folder, limit, 1).idle_bytes

    def least_start(self, folder: Path, limit: int) -> int:
        """The least limit, to two mebibytes, that the start of `edgeplan-run` lives in; in the given one it does not."""
        low, high = limit, 2 * limit
        while not self._starts(folder, high):
            low, high = high, 2 * high
        while high - low > _START_STEP:
            middle = (low + high) // 2
            low, high = (low, middle) if self._starts(folder, middle) else (middle, high)
        return high

    def _starts(self, folder: Path, limit: int) -> bool:
        try:
            return self._run(folder, limit, 1, _START_SECONDS).idle_bytes > 0
        except TimeoutError:
            return False

    def _run(self, folder: Path, limit: int, repeat: int = 5, seconds: float = _TIMEOUT_SECONDS) -> Proof:
        words = (PROGRAM, str(folder.resolve()), "--repeat", str(repeat), "--gate")
        paid = self._paid(lambda gate: ((*words, gate), b""), limit=limit, timeout_seconds=seconds)
        if paid.code:
            return _proof(paid, 0, f"{ending(paid.code)}{last_words(paid.stderr)}", total=True)
        told = _FAULTS.search(paid.stdout.decode(errors="replace"))
        return _proof(paid, int(told[1]) if told else 0, total=True)

    def _paid(self, told: Callable[[str], tuple[Sequence[str], bytes]], **how: Any) -> Limited:
        """Run what is told its gate: a command, and what it reads."""
        with tempfile.TemporaryDirectory(dir=self._work) as place:
            gate = Path(place).resolve() / "gate"
            command, said = told(str(gate))
            return run_paying(command, said, gate, self._files, self._work, **how)


def _twice(held: Callable[[int], Proof], fits: Callable[[Proof], bool]) -> Proof:
    """A run with room shows what is needed; only one that may fit is held to its limit."""

    def tried() -> Proof:
        wide = held(_ROOM_BYTES)
        if wide.ended:
            return wide
        return held(0) if fits(wide) else replace(wide, exceeded=True)

    return _reasoned(tried)


def _reasoned(held: Callable[[], Proof]) -> Proof:
    """Return the proof of a run, or one with the reason why there can be none."""
    try:
        return held()
    except (NoGroupError, TimeoutError) as error:
        return Proof(reason=str(error))


def _proof(paid: Limited, major_faults: int, ended: str = "", *, total: bool = False) -> Proof:
    idle, peak = paid.idle_bytes, paid.peak_bytes
    return Proof(total, paid.limit_bytes, idle, peak, major_faults, paid.failures, ended=ended)
