"""What costs are in a fresh process, where every cold start happens, against those that were profiled; and the start itself.

Candidates are profiled one after another, in a process that has prepared and executed the like before. A process that has just
started meets pages that are not mapped yet, caches that hold something else, and a code generator that nobody has called; but
it makes all its kernels in a row, where the profiler reads and transforms weights between two of them. Two plans of a model
are started in fresh processes: each step's candidate of the least work, prepared on one core beside the execution, once with
weights mapped from the cache and once with raw ones. Each stage's time there over the profile's is a factor on all costs of
that stage.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from edgeplan.cold.clock import Clock
from edgeplan.cold.profiling.check import Check, check, predicted_ms
from edgeplan.cold.profiling.settings import Cores
from edgeplan.cold.profiling.store import Row
from edgeplan.cold.profiling.target import target_of
from edgeplan.planning.cold_start.machine import MAIN, Schedule, costs_of, makespan_ms
from edgeplan.planning.cold_start.plan import Plan
from edgeplan.planning.cold_start.planner import Outcome, document
from edgeplan.planning.cold_start.profile import BIG, Candidate, Fresh, Profile
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder

#: Signatures of the rows of whole programs begin with this; the `position` of such a row is the number of steps.
START = "start-"
_STAGE = "start"
_MOST = 20.0  # a factor beyond this, either way, says that the machine was busy
_LEAST_MS = 0.05  # of a stage, for a ratio of it to say anything


def start_signature(signed: Sequence[str]) -> str:
    """The key of a program's row: it stands for all of its steps."""
    return START + hashlib.sha256(" ".join(signed).encode()).hexdigest()[:18]


def start_ms(row: Row) -> float:
    """What is paid before the first step."""
    return row.samples_ms[_STAGE][0]


def fresh_of(rows: Sequence[Row]) -> Fresh:
    """The factors of a program; of several, their medians; of none, none."""
    if not rows:
        return Fresh()
    return Fresh(*(float(np.median([row.samples_ms[field.name][0] for row in rows])) for field in fields(Fresh)))


def fresh_row(signed: Sequence[str], start: float, fresh: Fresh) -> Row:
    """The row of a program: the time of its start, and each factor as a stage of one sample."""
    stored = {_STAGE: start, **{field.name: getattr(fresh, field.name) for field in fields(Fresh)}}
    samples = {name: (float(np.float32(value)),) for name, value in stored.items()}  # as rows are stored
    return Row(start_signature(signed), "", len(signed), 0, 0, 0, samples, time.time())


def measure_fresh(
    dnnl: Dnnl,
    model: Path,
    profile: Profile,
    inputs: Mapping[str, tuple[int, ...]],
    *,
    cores: Cores,
    scratch: Path,
    repeats: int,
    clock: Clock,
) -> tuple[float, Fresh]:
    """Start two plans of a model in fresh processes.

    Args:
        dnnl: the library.
        model: the model file.
        profile: of the model under one home layout; its start and its factors are not looked at.
        inputs: shape of each input.
        cores: of the device.
        scratch: folder to write to.
        repeats: fresh processes of each plan.
        clock: the profile's.

    Returns:
        Milliseconds from opening a plan to its first work on a step, and the factors.

    Raises:
        ColdRunError: a process failed.
    """
    plain = replace(profile, start_ms=0.0, fresh=Fresh())
    plans = {source: plan_of_least(dnnl, model, plain, source, len(cores.big)) for source in ("cached_mmap", "raw")}
    checks: dict[str, Check] = {}
    for source, plan in plans.items():
        folder = scratch / f"fresh-{profile.layout}-{source}"
        build_plan_folder(dnnl, model, plan, folder)
        checks[source] = check([plain], plan, folder, inputs, cpus=cores.all, repeats=repeats, clock=clock)
    mapped, raw = checks["cached_mmap"], checks["raw"]
    factors = Fresh(
        read=_factor(raw, "read"),
        map=_factor(mapped, "read"),
        create=_factor(mapped, "create"),
        transform=_factor(raw, "transform"),
        execute=_factor(mapped, "execute"),
    )
    start = mapped.measured_ms["open"]
    told = predicted_ms(replace(plain, start_ms=start, fresh=factors), plans["cached_mmap"])
    left = mapped.measured_ms["total"] - told["total"]
    steps = len(profile.layers) if profile.queues else 0  # what is prepared by the core that executes is handed to nobody
    return start, replace(factors, hand_over_ms=max(left / steps, 0.0) if steps else 0.0)


def plan_of_least(dnnl: Dnnl, model: Path, profile: Profile, source: str, threads: int) -> Plan:
    """Each step's candidate of the least work with one source of weights, prepared beside the execution where a core is left.

    Others may have had the profiler's quick look only, and be good in nothing: what they cost says little of those in plans.
    """

    def work_ms(candidate: Candidate) -> float:
        return sum(candidate.stages_ms(BIG)) + candidate.execute_ms[min(candidate.execute_ms)]

    choice = []
    for layer in profile.layers:
        usable = [i for i, c in enumerate(layer.candidates) if c.source in (source, "none")]
        choice.append(min(usable, key=lambda i: work_ms(layer.candidates[i])))
    lanes, steps = profile.queues, len(choice)
    place = tuple(k % lanes if lanes else MAIN for k in range(steps))
    schedule = Schedule(tuple(choice), place, steps if lanes or not profile.equal else 0)
    makespan = makespan_ms(costs_of(profile), schedule)
    outcome = Outcome(profile, schedule, makespan, "for calibration")
    return document(outcome, "calibration", target_of(model, dnnl, threads), bound_ms=makespan)


def _factor(checked: Check, stage: str) -> float:
    """Measured over predicted; 1 where there is next to nothing of the stage."""
    predicted = checked.predicted_ms[stage]
    return float(np.clip(checked.measured_ms[stage] / predicted, 1 / _MOST, _MOST)) if predicted > _LEAST_MS else 1.0
