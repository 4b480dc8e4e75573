"""The study of weights in half their bytes: plans of one model with them and with whole ones, run in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from edgeplan.chapters.memory.plan import MemoryPlanned, Planner
from edgeplan.chapters.memory.studies import StudiedModel
from edgeplan.errors import InfeasibleError
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import StreamRun, run_apart
from edgeplan.runtime.streaming.halves import BF16, F32, Stored

#: The case of the study's rows; their setting says how weights are stored.
CASE = "bf16"
_KINDS: tuple[Stored, ...] = (F32, BF16)


def halved(subject: StudiedModel, default: float) -> Iterator[dict[str, Any]]:
    """Measure plans for shares of what the first setting takes, of both kinds, process by process in turns.

    Args:
        subject: the model.
        default: the peak of the first setting, bytes over idle.
    """
    settings, planners = subject.settings, dict[Stored, Planner]()
    for kind in _KINDS:
        (subject.work / kind).mkdir()
        planners[kind] = Planner(
            subject.model, subject.work / kind, settings.threads, subject.cores, settings.runs, weights=kind
        )
    for share in settings.halved_shares:
        row: dict[str, Any] = {"case": CASE, "share": share, "budget": share * default}
        made: dict[Stored, MemoryPlanned] = {}
        for kind, planner in planners.items():
            try:
                made[kind] = planner.write(int(share * default), Mode.back_to_back, subject.work / f"plan-{kind}-{share:g}")
            except InfeasibleError as error:
                yield row | {"setting": kind, "reason": error.what}
        runs: dict[Stored, list[StreamRun]] = {kind: [] for kind in made}
        for turn in range(settings.halved_pairs):
            for kind in reversed(made) if turn % 2 else made:  # none is always the first
                plan, how = made[kind], planners[kind].settings(settings.runs)
                runs[kind].append(run_apart(plan.folder, [plan.document.model_dump()], how))
        for kind, found in runs.items():
            yield row | {"setting": kind} | _measured(made[kind], found)


def _measured(made: MemoryPlanned, runs: list[StreamRun]) -> dict[str, Any]:
    """Summarise runs of one plan; the first inference of each process waits for what stays, and is left out."""
    phases = [run.phases[0] for run in runs]
    times, waits, read = (
        [value for phase in phases for value in getattr(phase, name)[1:]] for name in ("run_ms", "wait_ms", "read_bytes")
    )
    return {
        "peak": max(run.peak_over_idle for run in runs), "idle": runs[0].idle.rss, "median_ms": statistics.median(times),
        "least_ms": min(times), "wait_ms": statistics.median(waits), "read": statistics.median(read),
        "predicted_ms": made.document.predicted_ms, "plan_bound_ms": made.document.lower_bound_ms,
        "bytes_per_ms": made.document.bytes_per_ms, "error": math.nan if made.error is None else made.error,
        "pairs": len(runs), "weights": made.candidate.program.weights_bytes,
    }  # fmt: skip
