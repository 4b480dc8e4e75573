"""Declares the chapter on adaptation: what it keeps of devices, computes and shows."""

from __future__ import annotations

from edgeplan.chapters.adaptation.settings import AdaptationParams
from edgeplan.chapters.base import Chapter, Stage, Targets

_DEVICES = Targets("adaptation.devices")
_REPORTS = Targets("adaptation.reports")
_RESULTS, _KEPT, _SHOWN, _CHAPTERS = "results/{device}", "data/transfer", "results/{device}/ladder", "results/chapters/{device}"
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
TABLES = Stage(
    name="ladder_tables",
    function="edgeplan.chapters.adaptation.evaluation.page:write",
    targets=_REPORTS,
    inputs=_LADDER,
    outputs={"metrics": f"{_CHAPTERS}/adaptation.json", "chapter": f"{_CHAPTERS}/adaptation.page.json"},
    paths={"measured": _SHOWN},
    metrics=(f"{_CHAPTERS}/adaptation.json",),
    writes=(f"{_SHOWN}/tables",),
    plots=(f"{_SHOWN}/figures",),
    shown=(f"{_SHOWN}/tables", f"{_SHOWN}/figures"),
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
