"""Runs several plans of memory for `edgeplan run a/ b/ --budget 100MiB`: in this process alone, within one budget.

Inputs and the comparison with ONNX Runtime are the work of other processes, as for one plan (`cli.run_memory`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from edgeplan.cli.run_memory import apart, mapped_inputs, peak_line, ready, told_times, writing
from edgeplan.errors import ParamsError
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.streaming.together import TogetherSession, shares
from edgeplan.support.memory_counters import page_tables, resident
from edgeplan.terminal import escaped, say

_MIB = 1 << 20


def run_together(plans: Sequence[PlanFolder], given: argparse.Namespace) -> None:
    """Run plans of memory in turns, and print their times and the process's peak beside the budget.

    Raises:
        ParamsError: an option is for one plan alone, or no budget is given.
        SystemExit: what another process refused, with its exit code; it has said why.
        EdgeplanError: see `TogetherSession`.
    """
    _require_fitting(given)
    with tempfile.TemporaryDirectory(prefix="edgeplan-run-") as work:
        jobs = [_job(plan, Path(work) / str(k), given) for k, plan in enumerate(plans)]
        (budget,) = {size for job in jobs for size in json.loads(apart("inputs", job))}
        shares(plans, budget)  # refused before anything is opened
        dnnl, idle = ready(plans[0], given.gate)
        with TogetherSession(plans, budget, dnnl) as together:
            inputs = [
                mapped_inputs(session.program, Path(str(job["work"])))
                for session, job in zip(together.sessions, jobs, strict=True)
            ]
            takes = [
                writing(session.program, Path(str(job["work"]))) for session, job in zip(together.sessions, jobs, strict=True)
            ]
            times: list[list[float]] = [[] for _ in plans]
            for session in together.sessions:
                session.stream.expect(given.repeat)
            for _ in range(given.repeat):
                for session, values, take, own in zip(together.sessions, inputs, takes, times, strict=True):
                    if session.isolated:
                        session.stream.fill()
                    began = time.perf_counter()
                    session.stream.run_taking(values, take)
                    own.append((time.perf_counter() - began) * 1e3)
            peak, tables = resident(), page_tables()
            for session, share, own in zip(together.sessions, together.shares, times, strict=True):
                say(
                    f"{escaped(session.program.model)}: {share.budget_bytes / _MIB:.1f} MiB, {told_times(own)}, "
                    f"predicted {share.predicted_ms:.2f} ms"
                )
            say(f"together: {together.predicted_ms:.2f} ms predicted, one inference of each")
        say(peak_line(idle, peak, tables, budget))
        if given.check:
            for job in jobs:
                apart("outputs", job)


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
