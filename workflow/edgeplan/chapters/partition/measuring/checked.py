"""Plans that check themselves, measured: how long they take to make, and the ways to run a model on fresh runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.checked.opened_plan import OpenedPlan
from edgeplan.chapters.partition.checked.planning import CheckedPlanning, CheckLimits
from edgeplan.chapters.partition.eop.sweeps import subject_of
from edgeplan.chapters.partition.measuring.rows import CHECKED, LATER
from edgeplan.chapters.partition.names import PLANNED, SIDES
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import EdgeplanError
from edgeplan.planning.partition.plan import PartitionPlan

#: New processes that run a plan later, and turns of each.
_PROCESSES, _TURNS = 3, 5


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """A written plan waits to be run again.

    Attributes:
        folder: of the plan.
        since: when it was written, by `time.monotonic`.
        written_ms: what it takes, as it says.
        unscaled_ms: the same without the factor from running it.
    """

    folder: Path
    since: float
    written_ms: float
    unscaled_ms: float

    def age(self) -> float:
        """Return the seconds since it was written."""
        return time.monotonic() - self.since

    def rows(self) -> pd.DataFrame:
        """Run the plan in new processes, one after the other."""
        found = []
        for process in range(_PROCESSES):
            row = {"process": float(process), "written_ms": self.written_ms, "unscaled_ms": self.unscaled_ms, "reason": ""}
            row["waited_s"] = round(self.age(), 1)
            try:
                with OpenedPlan(self.folder) as plan:
                    plan.wait()
                    row["median_ms"] = float(np.median([ms for _ in range(_TURNS) for ms in plan.turn()]))
            except EdgeplanError as error:
                row["reason"] = error.what.splitlines()[0]
            found.append(row)
        return pd.DataFrame(found).reindex(columns=list(CHECKED["later"]))


def checked_rows(
    pair: PairFile, name: str, model: Path, settings: tuple[str, ...], turns: int, output: Path
) -> tuple[pd.DataFrame, WrittenPlan | None]:
    """Plan a model by its own sweep, then run all ways once more: a row for each, with the columns of `rows.CHECKED`.

    Returns:
        The rows, and the plan; None where there is none.
    """
    written = None
    rows: list[dict[str, Any]] = []
    limits = CheckLimits(turns=turns, fewest=turns, stock=settings)
    try:
        planning = CheckedPlanning(pair, subject_of(name, model, 0), limits)
        chosen = planning.go(output)
        check = chosen.check
        assert check is not None  # noqa: S101  it was executed
        written = WrittenPlan(output, time.monotonic(), check.median_ms[check.way], chosen.plan.makespan_ms)
        again = planning.fresh(check.way)
        rows += [{"way": way, "median_ms": ms, "stock": 0.0} for way, ms in again.median_ms.items()]
        rows += [{"way": way, "reason": why, "stock": 0.0} for way, why in again.left_out.items()]
        rows += [{"way": way, "median_ms": ms, "stock": 1.0} for way, ms in check.stock_ms.items()]
        made = planning.made
        about = {
            "seconds": check.seconds,
            "over_best": 1 / again.margin,
            "over_low": 1 / again.high,
            "over_high": 1 / again.low,
        }
        splits = sum(step.on == "split" for step in made.plan.steps)
        about |= {"planned_ms": made.plan.makespan_ms, "splits": splits, "steps": len(made.plan.steps)}
        each = {way: {"check_ms": ms} for way, ms in check.median_ms.items()}
        for way in (*SIDES, PLANNED):
            if way in planning.known:
                each[way] = each.get(way, {}) | {"ops_ms": _operators_ms(planning.known[way].plan)}
        rows = [row | {"chosen": float(row["way"] == check.way)} | about | each.get(row["way"], {}) for row in rows]
    except EdgeplanError as error:
        rows = [{"way": "", "chosen": 1.0, "stock": 0.0, "reason": error.what.splitlines()[0]}]
    frame = pd.DataFrame(rows).reindex(columns=[*CHECKED["checked"], *LATER["checked"]])
    frame["reason"] = frame["reason"].astype(object).fillna("").astype(str)
    return frame, written


def _operators_ms(plan: PartitionPlan) -> float:
    """Sum up what each operator takes by itself, by the model's own sweep: no hand-over, and nothing beside another one."""
    return sum(max(step.cpu_end_ms, step.gpu_end_ms) - step.start_ms for step in plan.steps)
