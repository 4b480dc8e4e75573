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
        caption: what it shows: units, part of the paper.
        function: makes it.
        told: what the caption adds that depends on the measurements.
    """

    id: str
    title: str
    caption: str
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
        "Own plans beside lower bounds. Work: the least (preparation + execution) core-time of any candidate of each step, "
        "summed, over the cores; factors of a fresh process count where they are below 1. Proven: what no schedule on all "
        "cores beats at the profiled costs, with the start, contention, and executions in order; a start below it met costs "
        "lower than those. Both are at the speed of the runs: `slowness` is how many times their profiled cost the "
        "references took among them, and multiplies both. `beyond_work` is what most of a start beyond the work bound is: "
        "opening the plan (start), sharing the cores (contention, executions that take several cores more core-time than one, "
        "costlier candidates: `sharing_excess_ms`), one core's work that others wait for (idle), or slower than planned "
        "(`unplanned_excess_ms`), all core-time at the profiles' speed; creation (JIT) is in the bound as in the start. With "
        "the page cache evicted a start is bounded by the larger of the work and the disk: the fewest bytes any candidates "
        "read, over the bandwidth probed among the runs. `warm_ms` is of the plan `warm`, `warm_optimal_ms` of `optimal`, both "
        "on all cores. The columns in core-milliseconds are the parts of the optimal plan: create is JIT compilation, start "
        "what comes before the first step and behind the last, idle what cores wait for the work of one.",
        bounds.bounds,
        words.bounds,
    ),
    ColdTable(
        "cold_bounds_evicted",
        "What bounds a cold start with the page cache evicted",
        "The plan for that state, at its best number of threads. Disk bound: the fewest bytes any candidates read over the "
        "bandwidth probed among the runs (median); work bound: as above, at the speed of these runs. The larger one is what "
        "`evicted_over_bound` is over. `planned_bound_ms` is proven for the disk as it was measured once, before planning. "
        "`needed_mb_per_s`: the same bytes over the whole start. The last columns are the stages as measured, summed over the "
        "lanes, execution on several cores once: read is fetching what has come, what lanes wait for the disk is in no stage.",
        bounds.bounds_evicted,
        words.bounds_of_disk,
    ),
    ColdTable(
        "cold_table_01",
        "Stages of a cold start",
        "Medians over the repeats, all cores. `warm plan`: raw weights, the kernels that are fastest warm, planned as a "
        "sequence, as stock engines start; `optimal plan`, `evicted plan` (for an evicted page cache): stages overlap, so they "
        "do not add up to the total. Memory allocation is the time to touch as many fresh bytes as the start took, measured "
        "after it: in a start it is part of the other stages. "
        "`open` and `first_run` are all that stock engines tell (paper: Table 1, ResNet-50 on a Pixel 5).",
        stages.table_01,
        words.stages_of_lanes,
    ),
    ColdTable(
        "cold_table_02",
        "Kernel alternatives of one convolution",
        "3 x 3, stride 1, 64 to 192 channels at 56 x 56; `layout`: the home layouts under which the row holds; `@` names "
        "layouts that the kernel converts from and to. An empty cell under several cores: the kernel had a quick look only, "
        "one sample on one core, since another one was far better; planners take it to be as slow on several (paper: Table 2, "
        "which has no creation: its kernels are compiled ahead).",
        plans.table_02,
    ),
    ColdTable(
        "cold_table_04",
        "Models, storage and planning",
        "MB is 10^6 bytes. Storage is the plan's file of transformed weights; planning is the optimal planner's time from a "
        "profile, over all home layouts (paper: Table 4, planned on phones). Two models differ from the paper's row. "
        "ShuffleNet: 1.5x with three groups is the width with its parameters; the paper's 1.9 GFLOPs are three times those of "
        "any width with that many. CRNN-lite: the published model (chineseocr_lite, hidden size 256, 5,530 classes) has its "
        "2.4 M parameters, which take 9.5 MB in single precision, the published file's size, and not 2.6 MB; FLOPs are those "
        "of one line of 320 pixels, of which the paper's 3.1 G are more than four times.",
        plans.table_04,
    ),
    ColdTable(
        "cold_table_05",
        "Speed-up over stock engines",
        "Stock engine / own plan, each at its best thread count; geometric mean here, arithmetic in the paper, which evicts "
        "the page cache. `without` says which models an engine cannot start. AsyMo has no public code and is left out (paper: "
        "Table 5).",
        runs.table_05,
        words.own_optimal,
    ),
    ColdTable(
        "cold_figure_08",
        "Cold latency of every model",
        "ms, each engine at its best thread count; beside it the bound (work; with an evicted page cache the larger of work "
        "and disk). `*_runs`: least and largest (ms) of the runs behind a median (paper: Fig. 8, bars without numbers).",
        runs.figure_08,
        words.own_optimal,
    ),
    ColdTable(
        "cold_figure_02",
        "Cold over warm",
        "By engine over the models, page cache evicted where that was measured (paper: Fig. 2, stock engines on phones, and "
        "the mean of section 4.2 for its own; ResNet-50 takes 511.67 ms cold and 141.56 warm on a Kryo 475).",
        runs.figure_02_summary,
        words.own_optimal,
    ),
    ColdTable(
        "cold_figure_06",
        "Stages by the number of cores",
        "Page cache warm (paper: Fig. 6, big and little cores of phones; cores here are equal).",
        stages.figure_06,
        words.widths,
    ),
    ColdTable(
        "cold_figure_09",
        "Cold latency by the number of cores",
        "`1+1, by waiting` stands for a little core: each preparation on it waits until it has taken its profiled ratio. It "
        "is no measurement of an asymmetric chip (paper: Fig. 9).",
        stages.figure_09,
        words.own_optimal,
    ),
    ColdTable(
        "cold_figure_11",
        "Background load",
        "Cold latency (ms, page cache warm) while a process, pinned to one core, keeps it busy for a share of the time. The "
        "names of the cores are nominal: equal cores are not pinned one by one, and the scheduler may move our threads (and "
        "an engine's) between them, away from the load. The slow-down is against no load: all runs of a setting at 0 %, "
        "which are alike whichever core the load was to be on. The stock setting is always this one, whichever is fastest. "
        "The paper also loads several cores at once, and has ncnn beside its own (paper: Fig. 11).",
        runs.figure_11,
        words.stealing,
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
        "warm: kernels fastest warm; K: kernels chosen for cold starts; C: transformed weights cached; P: pipelined, planned "
        "for the state of the page cache. All cores (paper: Fig. 13).",
        runs.figure_13,
        words.ablation,
    ),
    ColdTable(
        "cold_figure_14",
        "Continuous inference",
        "Medians (ms) of the first inferences of a process, one right after the other, and of their sum, page cache warm, "
        "all cores; `edgeplan` is the same plan without the mode; stock engines for the paper's two models. `over_ncnn_i`: "
        "inference i with the mode over ncnn's (paper: Fig. 14).",
        continuous.figure_14,
        words.continuous,
    ),
    ColdTable(
        "cold_predicted",
        "Predicted against measured makespan",
        "Every executed plan, in the state of the page cache that it is for. Measured is the whole cold start, reading the "
        "plan included. `setting`: `edgeplan` steals work, so that what ran is not what was planned where a lane was late or "
        "idle; `edgeplan-fixed` does not.",
        predictions.predicted_measured,
        words.sequences("warm", "K", "K+C"),
    ),
    ColdTable(
        "cold_predicted_shares",
        "Predicted within 15 %, by kind of plan",
        "Plans with |predicted / measured - 1| <= 0.15, over the models; `measured_over_predicted` is the geometric mean. The "
        "last row is the figure of merit: without plans from predicted costs and for an evicted page cache, and with makespans "
        "at the speed that the machine had among the runs (`slowness` in `cold_predicted`); the rows above have the evicted "
        "ones, too, and makespans as the plan documents have them.",
        predictions.predicted_shares,
        words.sequences("warm", "K", "K+C"),
    ),
    ColdTable(
        "cold_planners",
        "Heuristic against optimal plan",
        "Makespans as predicted and as measured; gaps, makespan / bound - 1, are to the proven bound of the optimal planner. "
        "`widen_from`: the step from which execution takes all cores (0: from the first; the number of steps: never). "
        "NNV12's Algorithm 1 tries all combinations up to 2^12 and descends by coordinates beyond; it is as written, but "
        "where the text is ambiguous or would not end (listed in `planning/cold_start/nnv12.py`). `*_runs`: least and "
        "largest of the runs behind a median.",
        plans.planners,
    ),
    ColdTable(
        "cold_predictions",
        "Planning from predictions",
        "The plan made from predicted costs, under the profiled costs and executed, against the plan made from profiled costs. "
        "`reason`: why a model has none. The predictors are the first chapter's, of the machine that it was measured on: the "
        "report's environment names it.",
        predictions.from_predictions,
    ),
    ColdTable(
        "cold_planning_time",
        "Planners' time",
        "Without profiling; the gap, makespan / bound - 1, is to the proven bound that each plan carries: the "
        "optimal planner's, or for `evicted` that of relaxations with the disk. `nnv12` and the plans of the ablation need not "
        "come near it.",
        plans.planning_time,
    ),
    ColdTable(
        "cold_factors",
        "Factors on profiled costs",
        "`fresh_*`: a stage in starts on one core in a fresh process / in the profile (`map`: weights mapped from the cache; "
        "`wide`: executions on all cores). `contention_prepare` (creation), `contention_read` and `contention_execute`: the "
        "stage in starts that prepare on one core and execute on another / on one core, at least 1. `contention_main`: on all "
        "preparation on the executing core while another one prepares, such that both get done what two preparations beside "
        "each other did. `contention_raw_*`: the same for steps whose weights are made from the model file (`prepare`: "
        "creation and transformation), which takes the interpreter. `fresh_hand_over_ms`: added to each step executed while "
        "others are prepared. `start_ms`: what a start takes besides its stages, whatever the plan. Medians over the home "
        "layouts (plans take `fresh_create` of their own layout); the last rows are over the models.",
        plans.factors,
        words.clipped,
    ),
    ColdTable(
        "cold_candidates",
        "Candidates that remain",
        "Implementation x source, before and after those are dropped that another one beats in both preparation and execution "
        "(section 3.3: the paper is left with 1 to 2 kernels an operator). `quick_look`: how many have one sample on one core "
        "and none on several, since another candidate was far better in one stage and hardly worse in the other.",
        plans.candidates,
    ),
    ColdTable(
        "cold_states",
        "Plans for the state of the page cache",
        "`optimal` is planned for weights in memory, `evicted` for weights that stream from the disk in the order of execution "
        "(bandwidth and latency measured once, before planning). Both are started in both states (ms); a gain is optimal / "
        "evicted. `widen_from`: the step from which all cores execute. The gap is that of `evicted` to its proven bound.",
        bounds.states,
    ),
    ColdTable(
        "cold_asymmetric",
        "An asymmetric chip, stood for by waiting",
        "One big core executes, one little core prepares, and waits until a preparation has taken `little_ratio` times its "
        "own duration. Not a measurement of such a chip. The gap is makespan / bound - 1. `setting`: `edgeplan` steals work, "
        "so the big core may help the little one; `edgeplan-fixed` does not.",
        plans.asymmetric,
    ),
    ColdTable(
        "cold_outputs",
        "Outputs against ONNX Runtime",
        "Largest |a - b| / largest |b|. Programs: the k-th candidate in every step, for all k, under every home layout, "
        "prepared and run step after step. Starts: all cold starts of plans, by the executor that they are made for and with "
        "weights from the cache, the first outputs of each. Equal: both up to 1e-4.",
        plans.outputs,
    ),
)

#: Every table by id, in the order of the report.
COLD_TABLES: Mapping[str, ColdTable] = MappingProxyType({table.id: table for table in _ALL})


def make_cold_tables(evidence: ColdEvidence) -> dict[str, pd.DataFrame]:
    """All tables by id."""
    return {name: table.make(evidence) for name, table in COLD_TABLES.items()}


def table_captions(evidence: ColdEvidence) -> dict[str, str]:
    """All captions by id, with what the measurements add to them."""
    return {name: words.caption_of(table.caption, table.told, evidence) for name, table in COLD_TABLES.items()}


def write_cold_tables(tables: Mapping[str, pd.DataFrame], captions: Mapping[str, str], folder: Path, measured_at: str) -> None:
    """Write tables as csv and md."""
    for name, frame in tables.items():
        write_table(frame, folder / name, COLD_TABLES[name].title, captions[name], measured_at)
