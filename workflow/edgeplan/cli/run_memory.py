"""Runs a plan of memory for `edgeplan run`: this process holds the session alone, and stays within its budget.

Files of tensors, random inputs and the comparison with ONNX Runtime are the work of other processes (`cli.run_files`).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeplan.cli.times import median, milliseconds
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.streaming.lean_inputs import random_inputs
from edgeplan.runtime.streaming.library_pages import LibraryPages, give_up_unused
from edgeplan.runtime.streaming.memory_session import MemorySession, narrow_limit
from edgeplan.runtime.streaming.phases import Phase, lateness, run_budgets, sureness
from edgeplan.runtime.streaming.program import Border
from edgeplan.runtime.streaming.session import READY_INFERENCES
from edgeplan.support import subprocesses
from edgeplan.support.memory_counters import page_tables, reset_peak, resident, wait_at
from edgeplan.support.subprocesses import module_command
from edgeplan.terminal import escaped, say

_MIB = 1 << 20


def run_memory(plan: PlanFolder, given: argparse.Namespace) -> None:
    """Run a plan of memory, and print its times and its peak beside the budget.

    Raises:
        SystemExit: what another process refused, with its exit code; it has said why.
        EdgeplanError: see `MemorySession` and `run_budgets`.
    """
    with tempfile.TemporaryDirectory(prefix="edgeplan-run-") as work:
        options = {name: str(getattr(given, name) or "") for name in ("given", "output", "model", "budgets")}
        job = {**options, "folder": str(plan.path), "check": given.check, "work": work}
        lean = not (given.given or given.budgets or given.check) and random_inputs(plan, Path(work))
        budgets = [] if lean else json.loads(apart("inputs", job))
        dnnl, idle = ready(plan, given.gate)
        with MemorySession(plan, dnnl, budgets) as session:
            program = session.program
            inputs = mapped_inputs(program.inputs, Path(work))
            waited = _Waited(writing(program.outputs, Path(work), given.repeat))
            phases, _, refused = run_budgets(session, inputs, given.repeat, budgets, waited)
            keep_under_limit(session, plan)
        peak = resident()
        for line in (
            f"{escaped(program.model)}: {len(program.step_names)} steps, {program.threads} threads",
            *map(_line, phases),
            *filter(None, (sureness(session.others), *(lateness(phase, session.bytes_per_ms) for phase in phases))),
        ):
            say(line)
        if (limit := narrow_limit(plan)) is not None:
            say(f"limit {limit / _MIB:.1f} MiB: {waited.pages} pages waited for after inference {READY_INFERENCES}")
        say(peak_line(idle, peak, page_tables(), max(phase.budget for phase in phases)))
        if given.output is not None or given.check:
            apart("outputs", job)
        if refused is not None:
            raise refused


_kept: list[object] = []  # to free its kernels would read other pages of the library


def keep_under_limit(session: object, plan: PlanFolder) -> None:
    """Keep a session until the process ends, where its memory is limited; see `end_at_once`.

    Args:
        session: with the kernels.
        plan: that is run.
    """
    if narrow_limit(plan) is not None:
        _kept.append(session)


class _Waited:
    """Counts the pages that this process has waited for since all code had run once.

    Args:
        take: what is done with the outputs of each inference.
    """

    def __init__(self, take: Callable[[str, memoryview], int]) -> None:
        self._take, self._ready = take, 0
        self._calls: dict[str, int] = {}

    def __call__(self, name: str, view: memoryview) -> int:
        written = self._take(name, view)
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._calls[name] <= READY_INFERENCES:
            self._ready = _major_faults()
        return written

    @property
    def pages(self) -> int:
        """Return how many they are."""
        return _major_faults() - self._ready


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def end_at_once() -> None:
    """End the process where it has run a plan under a narrow limit: what libraries do at exit would read more of them."""
    if _kept:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def ready(plan: PlanFolder, gate: str) -> tuple[Dnnl, dict[str, int]]:
    """Load the library and start its threads.

    Args:
        plan: that will be run.
        gate: a file to wait for; "": none.

    Returns:
        The library, and resident memory then, from which a budget counts; `start` is the most until then.
    """
    dnnl = Dnnl()
    dnnl.warm_up(plan.made_for.threads)
    LibraryPages(dnnl.info.path).drop()  # what the session drops is not to be what idle was
    if gate or narrow_limit(plan) is not None:
        give_up_unused()  # idle is what this process uses, not what was read ahead of it
    wait_at(gate)
    start = resident()["peak"]
    reset_peak()
    return dnnl, resident() | {"start": start}


def apart(what: str, job: Mapping[str, Any]) -> str:
    """Have another process read or write files of tensors.

    Args:
        what: `inputs` or `outputs`.
        job: see `cli.run_files`.

    Returns:
        What it printed.
    """
    command = module_command("edgeplan.cli.run_files", what, json.dumps(job))
    ended = subprocesses.run(command)
    printed, told = (text.decode(errors="replace") for text in (ended.stdout, ended.stderr))
    if told:
        say(told.rstrip("\n"), err=True)
    if what == "outputs" and printed:
        say(printed.rstrip("\n"))
    if ended.returncode:
        sys.exit(ended.returncode)
    return printed


def mapped_inputs(borders: Sequence[Border], work: Path) -> dict[str, mmap.mmap]:
    """Map the files of a model's inputs.

    Args:
        borders: the inputs.
        work: the folder of the files.
    """
    found = {}
    for k, border in enumerate(borders):
        with (work / f"{k}.in").open("rb") as file:
            found[border.name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return found


def writing(borders: Sequence[Border], work: Path, repeat: int = 1) -> Callable[[str, memoryview], int]:
    """Make what writes outputs to files: the last of so many inferences, and the first ones, so that its code has run.

    Args:
        borders: the outputs.
        work: the folder of the files.
        repeat: inferences of each budget.
    """
    places = {border.name: work / f"{k}.out" for k, border in enumerate(borders)}
    calls = dict.fromkeys(places, 0)

    def write(name: str, view: memoryview) -> int:
        calls[name] += 1
        return places[name].write_bytes(view) if calls[name] <= READY_INFERENCES or not calls[name] % repeat else 0

    return write


def _line(phase: Phase) -> str:
    line = (
        f"{phase.budget / _MIB:.1f} MiB: {told_times(phase.run_ms)}, predicted {milliseconds(phase.predicted_ms)}, "
        f"{phase.read_bytes / len(phase.run_ms) / _MIB:.1f} MiB read an inference"
    )
    if phase.replan_ms:
        line += f"; planned in {phase.replan_ms:.1f} ms, ready after {phase.pause_ms:.1f} ms more"
    return line


def told_times(times: Sequence[float]) -> str:
    """Tell the times of inferences, ms: their median, and the least of them."""
    if len(times) == 1:
        return milliseconds(times[0])
    return f"{milliseconds(median(times))} (median of {len(times)}, least {milliseconds(min(times))})"


def peak_line(idle: dict[str, int], peak: dict[str, int], tables: int, budget: int) -> str:
    """Tell what this process took at most, from its start and from opening the plan on, and of what kind it is at the end."""
    over = (peak["peak"] - idle["rss"]) / _MIB
    kinds = (("anonymous", peak["anonymous"] + peak["shared"]), ("of files", peak["file"]), ("of the kernel's tables", tables))
    told = ", ".join(f"{size / _MIB:.1f} {kind}" for kind, size in kinds)
    return (
        f"peak {max(idle['start'], peak['peak']) / _MIB:.1f} MiB, {idle['start'] / _MIB:.1f} before the plan was opened: "
        f"{over:.2f} over the {idle['rss'] / _MIB:.1f} of the idle process, budget {budget / _MIB:.2f}; {told}"
    )
