"""Declares the chapter on adaptation: what it keeps of devices, computes and shows."""

from __future__ import annotations

from edgeplan.chapters.adaptation.settings import AdaptationParams
from edgeplan.chapters.base import Chapter, Stage, Targets, tables_stage

_DEVICES = Targets("adaptation.devices")
_REPORTS = Targets("adaptation.reports")
_RESULTS, _KEPT, _SHOWN = "results/{device}", "data/transfer", "results/{device}/ladder"
_LADDER = {"ladder": f"{_SHOWN}/ladder.parquet", "environment": f"{_SHOWN}/environment.json"}

KEEP = Stage(
    name="adaptation_rows",
    function="edgeplan.chapters.adaptation.stages.rows:keep_rows",
    targets=_DEVICES,
    inputs={
        "kernels": f"{_RESULTS}/measurements/kernels.parquet",
        "summary": f"{_RESULTS}/measurements/sampling.json",
        "rules": f"{_RESULTS}/fusion/rules.json",
        "calibration": f"{_RESULTS}/calibration/models.parquet",
        "truth": f"{_RESULTS}/evaluation/truth.parquet",
        "environment": f"{_RESULTS}/evaluation/environment.json",
        "models": "data/zoo/models.parquet",
    },
    paths={"measured": "data/rows/{device}", "results": _RESULTS, "kept": f"{_KEPT}/{{device}}"},
    reads=("data/rows/{device}/sampling", "data/rows/{device}/calibration"),
    outputs={"about": f"{_KEPT}/{{device}}/about.json"},
    writes=(f"{_KEPT}/{{device}}",),
)
LADDER = Stage(
    name="ladder",
    function="edgeplan.chapters.adaptation.stages.ladder:compute_ladder",
    targets=_REPORTS,
    params=("seed", "adaptation"),
    paths={"kept": _KEPT},
    reads=(_KEPT,),
    outputs=_LADDER,
    all_cores=True,
    in_tables=False,
)
TABLES = tables_stage(
    "ladder_tables",
    "edgeplan.chapters.adaptation.evaluation.page:write",
    _REPORTS,
    _LADDER,
    _SHOWN,
    "results/chapters/{device}/adaptation",
)
CHAPTER = Chapter(
    name="adaptation",
    title="A new device in a minute",
    paper="none",
    settings=AdaptationParams,
    targets=_REPORTS,
    stages=(KEEP, LADDER, TABLES),
    tables="edgeplan.chapters.adaptation.evaluation.tables:TABLES",
    figures="edgeplan.chapters.adaptation.evaluation.figures:FIGURES",
    named_devices=(_DEVICES,),
)
