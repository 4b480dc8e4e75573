"""Registers the cold-start chapter's tables. No table is left out: one that could not be measured says why."""

from __future__ import annotations

from collections.abc import Mapping

from edgeplan.chapters.cold_start.evaluation import tables_continuous as continuous
from edgeplan.chapters.cold_start.evaluation import tables_plans as plans
from edgeplan.chapters.cold_start.evaluation import tables_runs as runs
from edgeplan.chapters.cold_start.evaluation import tables_stages as stages
from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.reporting.kit import TableSpec, registry

#: Every table by id, in the order of the report.
COLD_TABLES: Mapping[str, TableSpec[ColdEvidence]] = registry(
    TableSpec("cold_beside", "Our start against the best stock setting of each model", runs.beside),
    TableSpec("cold_table_01", "Stages of a cold start", stages.table_01),
    TableSpec("cold_table_02", "Kernel alternatives of one convolution", plans.table_02),
    TableSpec("cold_table_04", "Models, storage and planning", plans.table_04),
    TableSpec("cold_table_05", "Speed-up over stock engines", runs.table_05),
    TableSpec("cold_figure_08", "Cold latency of every model", runs.figure_08),
    TableSpec("cold_figure_02", "Cold over warm", runs.figure_02_summary),
    TableSpec("cold_figure_06", "Stages by the number of cores", stages.figure_06),
    TableSpec("cold_figure_09", "Cold latency by the number of cores", stages.figure_09),
    TableSpec("cold_figure_11", "Background load", runs.figure_11),
    TableSpec("cold_figure_13", "Ablation", runs.figure_13),
    TableSpec("cold_figure_14", "Continuous inference", continuous.figure_14),
)
