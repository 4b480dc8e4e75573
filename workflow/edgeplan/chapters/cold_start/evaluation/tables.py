"""The registry of the cold-start chapter's tables. No table is left out: one that could not be measured says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from edgeplan.chapters.cold_start.evaluation import findings as words
from edgeplan.chapters.cold_start.evaluation import tables_bounds as bounds
from edgeplan.chapters.cold_start.evaluation import tables_continuous as continuous
from edgeplan.chapters.cold_start.evaluation import tables_plans as plans
from edgeplan.chapters.cold_start.evaluation import tables_predictions as predictions
from edgeplan.chapters.cold_start.evaluation import tables_runs as runs
from edgeplan.chapters.cold_start.evaluation import tables_stages as stages
from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.chapters.cold_start.evaluation.tables_stages import NotMeasuredError
from edgeplan.reporting.table import write_table

#: The one column of a table that could not be measured.
REASON = "not measured"


@dataclass(frozen=True, slots=True)
class ColdTable:
    """A table of the chapter.

    Attributes:
        id: stem of its files.
        title: one line.
        function: makes it.
        told: what the caption adds that depends on the measurements.
    """

    id: str
    title: str
    function: Callable[[ColdEvidence], pd.DataFrame]
    told: words.Words = words.nothing

    def make(self, evidence: ColdEvidence) -> pd.DataFrame:
        """The table, or one that says why there is none."""
        try:
            return self.function(evidence)
        except NotMeasuredError as error:
            return pd.DataFrame({REASON: [str(error)]})


_ALL = (
    ColdTable(
        "cold_bounds",
        "What bounds a cold start",
        bounds.bounds,
        words.bounds,
    ),
    ColdTable(
        "cold_bounds_evicted",
        "What bounds a cold start with the page cache evicted",
        bounds.bounds_evicted,
        words.bounds_of_disk,
    ),
    ColdTable(
        "cold_table_01",
        "Stages of a cold start",
        stages.table_01,
        words.stages_of_lanes,
    ),
    ColdTable(
        "cold_table_02",
        "Kernel alternatives of one convolution",
        plans.table_02,
    ),
    ColdTable(
        "cold_table_04",
        "Models, storage and planning",
        plans.table_04,
    ),
    ColdTable(
        "cold_table_05",
        "Speed-up over stock engines",
        runs.table_05,
        words.own_optimal,
    ),
    ColdTable(
        "cold_figure_08",
        "Cold latency of every model",
        runs.figure_08,
        words.own_optimal,
    ),
    ColdTable(
        "cold_figure_02",
        "Cold over warm",
        runs.figure_02_summary,
        words.own_optimal,
    ),
    ColdTable(
        "cold_figure_06",
        "Stages by the number of cores",
        stages.figure_06,
        words.widths,
    ),
    ColdTable(
        "cold_figure_09",
        "Cold latency by the number of cores",
        stages.figure_09,
        words.own_optimal,
    ),
    ColdTable(
        "cold_figure_11",
        "Background load",
        runs.figure_11,
        words.stealing,
    ),
    ColdTable(
        "cold_figure_12",
        "Energy",
        runs.figure_12,
    ),
    ColdTable(
        "cold_figure_13",
        "Ablation",
        runs.figure_13,
        words.ablation,
    ),
    ColdTable(
        "cold_figure_14",
        "Continuous inference",
        continuous.figure_14,
        words.continuous,
    ),
    ColdTable(
        "cold_predicted",
        "Predicted against measured makespan",
        predictions.predicted_measured,
        words.sequences("warm", "K", "K+C"),
    ),
    ColdTable(
        "cold_predicted_shares",
        "Predicted within 15 %, by kind of plan",
        predictions.predicted_shares,
        words.sequences("warm", "K", "K+C"),
    ),
    ColdTable(
        "cold_planners",
        "Heuristic against optimal plan",
        plans.planners,
    ),
    ColdTable(
        "cold_predictions",
        "Planning from predictions",
        predictions.from_predictions,
    ),
    ColdTable(
        "cold_planning_time",
        "Planners' time",
        plans.planning_time,
    ),
    ColdTable(
        "cold_factors",
        "Factors on profiled costs",
        plans.factors,
        words.clipped,
    ),
    ColdTable(
        "cold_candidates",
        "Candidates that remain",
        plans.candidates,
    ),
    ColdTable(
        "cold_states",
        "Plans for the state of the page cache",
        bounds.states,
    ),
    ColdTable(
        "cold_asymmetric",
        "An asymmetric chip, stood for by waiting",
        plans.asymmetric,
    ),
    ColdTable(
        "cold_outputs",
        "Outputs against ONNX Runtime",
        plans.outputs,
    ),
)

#: Every table by id, in the order of the report.
COLD_TABLES: Mapping[str, ColdTable] = MappingProxyType({table.id: table for table in _ALL})


def make_cold_tables(evidence: ColdEvidence) -> dict[str, pd.DataFrame]:
    """All tables by id."""
    return {name: table.make(evidence) for name, table in COLD_TABLES.items()}


def table_notes(evidence: ColdEvidence) -> dict[str, str]:
    """What the measurements add to captions, by id; "" for nothing."""
    return {name: words.note(table.told, evidence) for name, table in COLD_TABLES.items()}


def write_cold_tables(tables: Mapping[str, pd.DataFrame], notes: Mapping[str, str], folder: Path, measured_at: str) -> None:
    """Write tables as csv and md, the latter with `notes` of what the measurements say besides."""
    for name, frame in tables.items():
        write_table(frame, folder / name, COLD_TABLES[name].title, notes.get(name, ""), measured_at)
