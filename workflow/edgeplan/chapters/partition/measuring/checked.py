"""Plans that check themselves, measured: how long they take to make, and the ways to run a model on fresh runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.partition.checked.planning import CheckedPlanning, CheckLimits
from edgeplan.chapters.partition.eop.sweeps import subject_of
from edgeplan.chapters.partition.measuring.rows import CHECKED
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import EdgeplanError
from edgeplan.planning.partition.parallel import SearchLimits


def checked_rows(pair: PairFile, model: Path, settings: tuple[str, ...], turns: int) -> pd.DataFrame:
    """Plan a model by its own sweep, then run all ways once more: a row for each, with the columns of `rows.CHECKED`.

    Args:
        pair: is opened meanwhile.
        model: its ONNX file.
        settings: of stock engines to stand beside.
        turns: of each way.
    """
    rows: list[dict[str, Any]] = []
    limits = CheckLimits(turns=turns, fewest=turns, stock=settings)
    try:
        planning = CheckedPlanning(pair, subject_of(model.stem, model, 0), "sequential", SearchLimits(), limits)
        check = planning.go(model.with_suffix(".plan")).check
        assert check is not None  # noqa: S101  it was executed
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
        rows = [row | {"chosen": float(row["way"] == check.way)} | about for row in rows]
    except EdgeplanError as error:
        rows = [{"way": "", "chosen": 1.0, "stock": 0.0, "reason": error.what.splitlines()[0]}]
    frame = pd.DataFrame(rows).reindex(columns=list(CHECKED["checked"]))
    frame["reason"] = frame["reason"].astype(object).fillna("").astype(str)
    return frame
