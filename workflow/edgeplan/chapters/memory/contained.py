"""Plans in containers: a limit of memory holds `edgeplan-run` from the start of its process on.

Two limits a model: the least in which a plan was proven, and what our process takes idle with a share of what ONNX Runtime
takes over idle. Each plan is run several times in a fresh group that pays for all that it has in memory. A run holds where the
process lives, waits for no page once all of its code has run, and meets its limit nowhere once it was idle; what is killed or
fails counts as not held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner, TooSmallError
from edgeplan.chapters.memory.proof import Proof
from edgeplan.errors import EdgeplanError
from edgeplan.planning.memory.quick import Mode

CASE = "contained"
LEAST = "least"
_SEARCHES = 8
_RUNS = 3


def contained(planner: Planner, work: Path, stock: int, share: float) -> Iterator[dict[str, Any]]:
    """Run plans of a model for total budgets, each in fresh groups of that limit.

    Args:
        planner: of the model.
        work: a folder for plans.
        stock: bytes that ONNX Runtime takes over idle.
        share: of these, for the second limit.
    """
    ways: dict[str, Callable[[], MemoryPlanned]] = {
        LEAST: lambda: least_total(planner, work / "contained-least"),
        f"{100 * share:g} %": lambda: total_plan(planner, planner.idle_in_group + int(share * stock), work / "contained-share"),
    }
    for setting, plan in ways.items():
        try:
            made = plan()
            yield from _runs(planner, made, setting)
        except EdgeplanError as error:
            yield {"case": CASE, "setting": setting, "reason": error.what.splitlines()[0]}
        finally:
            planner.hold_over_idle()


def total_plan(planner: Planner, limit: int, folder: Path) -> MemoryPlanned:
    """A plan for a limit of the whole process."""
    planner.hold_total()
    return planner.write(limit - planner.beside_bytes, Mode.back_to_back, folder)


def least_total(planner: Planner, folder: Path) -> MemoryPlanned:
    """The plan for the least limit of the whole process that one was proven in; each refusal says what to try next."""
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
