"""Plans in containers: a limit of memory holds `edgeplan run` from the start of its process on; and latency held beside free.

Two limits a model: the least in which a plan was proven, and what our process takes idle with a share of what ONNX Runtime
takes over idle. Each plan is run several times in a fresh group that pays for all that it has in memory. A run holds where the
process lives, waits for no page once all of its code has run, and meets its limit nowhere once it was idle; what is killed or
fails counts as not held.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgeplan.chapters.memory.budget import MIB, mib
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner, TooSmallError
from edgeplan.chapters.memory.proof import Proof
from edgeplan.errors import EdgeplanError
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import run_apart
from edgeplan.runtime.streaming.session import READY_INFERENCES

CASE, RATIO_CASE = "contained", "held latency"
LEAST = "least"
_SEARCHES = 8
_RUNS, _TURNS, _INFERENCES = 3, 9, 5


def contained(planner: Planner, work: Path, stock: int, share: float, turns: int = _TURNS) -> Iterator[dict[str, Any]]:
    """Run plans of a model for total budgets, each in fresh groups of that limit.

    Args:
        planner: of the model.
        work: a folder for plans.
        stock: bytes that ONNX Runtime takes over idle.
        share: of these, for the second limit.
        turns: processes held and free, whose latencies are compared.
    """
    ways: dict[str, Callable[[], MemoryPlanned]] = {
        LEAST: lambda: least_total(planner, work / "contained-least"),
        f"{100 * share:g} %": lambda: total_plan(planner, planner.idle_in_group + int(share * stock), work / "contained-share"),
    }
    for setting, plan in ways.items():
        try:
            made = plan()
            yield from _runs(planner, made, setting)
            planner.hold_over_idle()
            yield held_latency(planner, made, turns) | {"setting": setting}
        except EdgeplanError as error:
            yield {"case": CASE, "setting": setting, "reason": error.what.splitlines()[0]}
        finally:
            planner.hold_over_idle()


def total_plan(planner: Planner, limit: int, folder: Path) -> MemoryPlanned:
    """A plan for a limit of the whole process.

    Raises:
        TooSmallError: it does not fit.
        EdgeplanError: of the planner.
    """
    planner.hold_total()
    return planner.write(limit - planner.beside_bytes, Mode.back_to_back, folder)


def least_total(planner: Planner, folder: Path) -> MemoryPlanned:
    """The plan for the least limit of the whole process that one was proven in; each refusal says what to try next.

    Raises:
        TooSmallError: none was found in a few attempts.
        EdgeplanError: of the planner.
    """
    limit = planner.least_bytes() + planner.idle_in_group
    for _ in range(_SEARCHES):
        try:
            return total_plan(planner, limit, folder)
        except TooSmallError as refusal:
            limit, last = max(limit + MIB, refusal.enough + planner.beside_bytes), refusal
    raise last


def _runs(planner: Planner, made: MemoryPlanned, setting: str) -> Iterator[dict[str, Any]]:
    limit = made.budget + planner.beside_bytes
    for place in range(_RUNS):
        proof = planner.prover(made.run.files).contained(made.folder, limit)
        row = {"case": CASE, "setting": setting, "place": place, "budget": limit}
        yield row | row_of(proof)


def row_of(proof: Proof) -> dict[str, Any]:
    """The columns of a run in a group; one that was killed or failed had an allocation that hit the limit."""
    if proof.reason:
        return {"reason": proof.reason}
    return {
        "idle": proof.idle_bytes, "peak": proof.peak_bytes, "failures": max(proof.failures, int(bool(proof.ended))),
        "major_faults": proof.major_faults, "reason": proof.ended,
    }  # fmt: skip


def held_latency(planner: Planner, made: MemoryPlanned, turns: int = _TURNS) -> dict[str, Any]:
    """Median latency held to idle and the budget over that without a limit, by turns; kills count as failures.

    Both are medians of processes, of which each tells the median of its inferences once all of its code has run.
    """
    prover, plan = planner.prover(made.run.files), made.document.model_dump()
    settings = planner.settings(_INFERENCES)
    row: dict[str, Any] = {"case": RATIO_CASE, "budget": made.budget}
    held_ms, free_ms, killed, faults = [], [], 0, 0
    for _ in range(turns):
        free = run_apart(made.folder, made.candidate.program.threads, [plan], settings)
        free_ms.append(statistics.median(free.phases[0].run_ms[READY_INFERENCES:]))
        held = prover.held(made.folder, made.candidate.program.threads, plan, settings, made.budget)
        if held.reason:
            return row | {"reason": held.reason}
        killed += bool(held.ended)
        faults = max(faults, held.major_faults)
        held_ms += [held.run_ms] if not held.ended else []
    row |= {"failures": killed, "major_faults": faults, "pairs": len(held_ms)}
    if not held_ms:
        return row | {"reason": f"no run lived in {mib(made.budget)} over idle"}
    return row | {"median_ms": statistics.median(held_ms), "pause_ms": statistics.median(held_ms) / statistics.median(free_ms)}
