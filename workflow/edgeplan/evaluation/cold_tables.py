"""The registry of the cold-start chapter's tables. No table is left out: one that could not be measured says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from edgeplan.evaluation import cold_tables_plans as plans
from edgeplan.evaluation import cold_tables_runs as runs
from edgeplan.evaluation import cold_tables_stages as stages
from edgeplan.evaluation.cold_evidence import ColdEvidence
from edgeplan.evaluation.cold_tables_stages import NotMeasuredError
from edgeplan.evaluation.tables import write_table

#: The one column of a table that could not be measured.
REASON = "not measured"


@dataclass(frozen=True, slots=True)
class ColdTable:
    """A table of the chapter: stem of its files, one line, what it shows (units, part of the paper), and what makes it."""

    id: str
    title: str
    caption: str
    function: Callable[[ColdEvidence], pd.DataFrame]

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
        "Own plans beside two lower bounds. Work: the least (preparation + execution) core-time of any candidate of each "
        "step, summed, over the cores. Disk: the fewest bytes any candidates read, over the bandwidth probed among the runs. "
        "The last columns are the parts of the optimal plan's work in core-milliseconds: create is JIT compilation.",
        plans.bounds,
    ),
    ColdTable(
        "cold_table_01",
        "Stages of a cold start",
        "Medians over the repeats, all cores. `warm plan`: raw weights, the kernels that are fastest warm, everything in "
        "sequence, as stock engines start; `optimal plan`: stages overlap, so they do not add up to the total. Memory "
        "allocation is what the runtime tells, or the time to touch as much fresh memory, and is part of the other stages. "
        "`open` and `first_run` are all that stock engines tell (paper: Table 1, ResNet-50 on a Pixel 5).",
        stages.table_01,
    ),
    ColdTable(
        "cold_table_02",
        "Kernel alternatives of one convolution",
        "3 x 3, stride 1, 64 to 192 channels at 56 x 56, under each home layout; `@` names layouts that the kernel converts "
        "from and to (paper: Table 2, which has no creation: its kernels are compiled ahead).",
        plans.table_02,
    ),
    ColdTable(
        "cold_table_04",
        "Models, storage and planning",
        "MB is 10^6 bytes. Storage is the plan's file of transformed weights; planning is the optimal planner's time from a "
        "profile, over all home layouts (paper: Table 4).",
        plans.table_04,
    ),
    ColdTable(
        "cold_table_05",
        "Speed-up over stock engines",
        "Stock engine / own plan, each at its best thread count; geometric mean here, arithmetic in the paper, which evicts "
        "the page cache. `without` says which models an engine cannot start. AsyMo has no public code and is left out (paper: "
        "Table 5).",
        runs.table_05,
    ),
    ColdTable(
        "cold_figure_08",
        "Cold latency of every model",
        "ms, each engine at its best thread count; beside it the bound (work; with an evicted page cache the larger of work "
        "and disk) (paper: Fig. 8).",
        runs.figure_08,
    ),
    ColdTable(
        "cold_figure_02",
        "Cold over warm",
        "By engine over the models, page cache evicted where that was measured (paper: Fig. 2, stock engines on phones, and "
        "the mean of section 4.2 for its own).",
        runs.figure_02_summary,
    ),
    ColdTable(
        "cold_figure_06",
        "Stages by the number of cores",
        "Page cache warm (paper: Fig. 6, big and little cores of phones; cores here are equal).",
        stages.figure_06,
    ),
    ColdTable(
        "cold_figure_09",
        "Cold latency by the number of cores",
        "`1+1, by waiting` stands for a little core: each preparation on it waits until it has taken its profiled ratio. It "
        "is no measurement of an asymmetric chip (paper: Fig. 9).",
        stages.figure_09,
    ),
    ColdTable(
        "cold_figure_11",
        "Background load",
        "Cold latency (ms, page cache warm) while a process keeps one core busy for a share of the time; the slow-down is "
        "against no load (paper: Fig. 11).",
        runs.figure_11,
    ),
    ColdTable(
        "cold_figure_12",
        "Energy",
        "Joules of the whole process, imports included, by the processor's own counters (RAPL) (paper: Fig. 12).",
        runs.figure_12,
    ),
    ColdTable(
        "cold_figure_13",
        "Ablation",
        "warm: kernels fastest warm; K: kernels chosen for cold starts; C: transformed weights cached; P: pipelined. All "
        "cores (paper: Fig. 13).",
        runs.figure_13,
    ),
    ColdTable(
        "cold_figure_14",
        "Continuous inference",
        "Medians of the first five inferences of a process, page cache warm, all cores (paper: Fig. 14).",
        runs.figure_14,
    ),
    ColdTable(
        "cold_predicted",
        "Predicted against measured makespan",
        "Every executed plan. Measured is the whole cold start, reading the plan included, page cache warm.",
        plans.predicted_measured,
    ),
    ColdTable(
        "cold_planners",
        "Heuristic against optimal plan",
        "Makespans as predicted and as measured; gaps are to the proven bound of the optimal planner. NNV12's Algorithm 1 "
        "tries all combinations up to 2^12 and descends by coordinates beyond.",
        plans.planners,
    ),
    ColdTable(
        "cold_predictions",
        "Planning from predictions",
        "The plan made from predicted costs, under the profiled costs and executed, against the plan made from profiled costs.",
        plans.from_predictions,
    ),
    ColdTable(
        "cold_planning_time",
        "Planners' time",
        "Without profiling; the gap is to the bound that each plan carries.",
        plans.planning_time,
    ),
    ColdTable(
        "cold_candidates",
        "Candidates that remain",
        "Implementation x source, before and after those are dropped that another one beats in both preparation and execution "
        "(section 3.3: the paper is left with 1 to 2 kernels an operator).",
        plans.candidates,
    ),
    ColdTable(
        "cold_asymmetric",
        "An asymmetric chip, stood for by waiting",
        "One big core executes, one little core prepares, and waits until a preparation has taken `little_ratio` times its "
        "own duration. Not a measurement of such a chip.",
        plans.asymmetric,
    ),
    ColdTable(
        "cold_outputs",
        "Outputs against ONNX Runtime",
        "Largest |a - b| / largest |b| over all programs: the k-th candidate in every step, for all k, under every home "
        "layout; equal up to 1e-4.",
        plans.outputs,
    ),
)

#: Every table by id, in the order of the report.
COLD_TABLES: Mapping[str, ColdTable] = MappingProxyType({table.id: table for table in _ALL})


def make_cold_tables(evidence: ColdEvidence) -> dict[str, pd.DataFrame]:
    """All tables by id."""
    return {name: table.make(evidence) for name, table in COLD_TABLES.items()}


def write_cold_tables(tables: Mapping[str, pd.DataFrame], folder: Path, measured_at: str) -> None:
    """Write tables as csv and md."""
    for name, frame in tables.items():
        write_table(frame, folder / name, COLD_TABLES[name].title, COLD_TABLES[name].caption, measured_at)
