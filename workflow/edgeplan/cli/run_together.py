"""Runs several plans of memory for `edgeplan run a/ b/ --budget 100MiB`: in this process alone, within one budget.

Inputs and the comparison with ONNX Runtime are the work of other processes, as for one plan (`cli.run_memory`).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from edgeplan.cli.run_memory import apart, keep_under_limit, mapped_inputs, peak_line, ready, told_times, writing
from edgeplan.errors import ParamsError
from edgeplan.runtime.folder import PlanFolder, read_folder
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.together import TogetherSession, require_joinable
from edgeplan.support.memory_counters import page_tables, resident
from edgeplan.terminal import escaped, say

_MIB = 1 << 20


def run_together(plans: Sequence[PlanFolder], given: argparse.Namespace) -> None:
    """Run plans of memory in turns, and print their times and the process's peak beside the budget.

    Raises:
        ParamsError: an option is for one plan alone, or no budget is given.
        SystemExit: what another process refused, with its exit code; it has said why.
        EdgeplanError: see `TogetherSession` and `plan_together`.
    """
    _require_fitting(given)
    require_joinable(plans)
    with tempfile.TemporaryDirectory(prefix="edgeplan-run-") as work:
        jobs = [_job(plan, Path(work) / str(k), given) for k, plan in enumerate(plans)]
        (budget,) = {size for job in jobs for size in json.loads(apart("inputs", job))}
        schedule = Path(work) / "schedule"
        folders = json.loads(
            apart("together", {"folders": [job["folder"] for job in jobs], "budget": budget, "path": str(schedule)})
        )
        dnnl, idle = ready(plans[0], given.gate)
        with TogetherSession([read_folder(Path(folder)) for folder in folders], schedule, dnnl) as together:
            places = [Path(str(job["work"])) for job in jobs]
            inputs = [mapped_inputs(turn.inputs, place) for turn, place in zip(together.turns, places, strict=True)]
            takes = [writing(turn.outputs, place) for turn, place in zip(together.turns, places, strict=True)]
            times: list[list[float]] = [[] for _ in plans]
            together.stream.expect(given.repeat)
            baton = _Baton(given.baton)
            for _ in range(given.repeat):
                for values, take, own in zip(inputs, takes, times, strict=True):
                    baton.await_turn()
                    began = time.perf_counter()
                    together.run_taking(values, take)
                    own.append((time.perf_counter() - began) * 1e3)
                    baton.hand_over()
            peak, tables = resident(), page_tables()
            keep_under_limit(together, plans[0])
            for plan, stays, own in zip(plans, together.staying, times, strict=True):
                name = escaped(plan.program_of(StreamProgram).model)
                say(f"{name}: {told_times(own)}, {stays / _MIB:.1f} MiB of weights stay in memory")
            rounds = [sum(own) for own in zip(*times, strict=True)]
            say(f"together: {told_times(rounds)}, predicted {together.predicted_ms:.2f} ms, one inference of each")
        say(peak_line(idle, peak, tables, budget))
        if given.check:
            for job in jobs:
                apart("outputs", job)


class _Baton:
    """A baton says whose turn it is among processes: a byte in a named pipe.

    Args:
        paths: of the pipe that it comes from and of the one that it goes to, with a comma between; "": always this process's.
    """

    def __init__(self, paths: str) -> None:
        self._pipes = [os.open(path, os.O_RDWR) for path in paths.split(",")] if paths else []

    def await_turn(self) -> None:
        """Wait until the other process hands it over."""
        if self._pipes:
            os.read(self._pipes[0], 1)

    def hand_over(self) -> None:
        """Give it to the next process."""
        if self._pipes:
            os.write(self._pipes[1], b".")


def _job(plan: PlanFolder, work: Path, given: argparse.Namespace) -> dict[str, object]:
    work.mkdir()
    options = {"given": "", "output": "", "model": "", "budgets": given.budget}
    return {**options, "folder": str(plan.path), "check": given.check, "work": str(work)}


def _require_fitting(given: argparse.Namespace) -> None:
    """Refuse options that are of one plan alone.

    Raises:
        ParamsError: names the option.
    """
    for option in ("given", "output", "model", "cold", "evicted", "device", "budgets"):
        if getattr(given, option):
            name = "--input" if option == "given" else f"--{option}"
            raise ParamsError(f"{name} is of one plan", where=name, next_step="leave it out, or run one plan at a time")
    if not given.budget:
        raise ParamsError("several plans run within one budget", where="--budget", next_step="give it, as in --budget 100MiB")
