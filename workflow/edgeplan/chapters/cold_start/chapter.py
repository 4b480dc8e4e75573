"""Declares the chapter on cold starts: what it measures, plans and shows."""

from __future__ import annotations

from edgeplan.chapters.base import Chapter, Stage, Targets, tables_stage
from edgeplan.chapters.cold_start.settings import ColdStartParams

_TARGETS = Targets("cold_start.devices")
_RESULTS, _MEASURED = "results/{device}", "results/{device}/cold"
_FRAMES = ("runs", "bandwidth", "profiles", "plans", "models", "checks")
_DOCUMENTS = {name: f"{_MEASURED}/{name}.parquet" for name in _FRAMES} | {
    name: f"{_MEASURED}/{name}.json" for name in ("notes", "environment")
}

#: Plans from predicted costs need the predictors of the device (stage training). They are no dependency: this stage also runs
#: for devices that the chapter on prediction was not built for, and then a table says that there were none.
COLD_START = Stage(
    name="cold_start",
    function="edgeplan.chapters.cold_start.stages.cold_start:measure_cold_start",
    targets=_TARGETS,
    params=("seed", "cold_start"),
    inputs={"device": "config/devices/{device}.yaml"},
    outputs=_DOCUMENTS,
    paths={"predictors": f"{_RESULTS}/predictors", "work": "work/cold", "measured": _MEASURED},
    rows="data/rows/{device}/cold_start",
    finds=(f"{_RESULTS}/predictors/card.json",),
    all_cores=True,
)
COLD_TABLES = tables_stage(
    "cold_tables",
    "edgeplan.chapters.cold_start.evaluation.page:write",
    _TARGETS,
    _DOCUMENTS,
    _MEASURED,
    "results/chapters/{device}/cold_start",
)
_GPU_TARGETS = Targets("cold_gpu.devices")
_GPU = f"{_RESULTS}/cold_gpu"
_GPU_DOCUMENTS = {name: f"{_GPU}/{name}.parquet" for name in ("starts", "plans")} | {"environment": f"{_GPU}/environment.json"}
COLD_GPU = Stage(
    name="cold_gpu",
    function="edgeplan.chapters.cold_start.stages.cold_gpu:measure_cold_gpu",
    targets=_GPU_TARGETS,
    params=("seed", "cold_gpu"),
    inputs={"device": "config/devices/{device}.yaml"},
    outputs=_GPU_DOCUMENTS,
    paths={"work": "work/cold_gpu", "measured": _GPU},
    rows="data/rows/{device}/cold_gpu",
    all_cores=True,
)
COLD_GPU_TABLES = tables_stage(
    "cold_gpu_tables",
    "edgeplan.chapters.cold_start.gpu.page:write",
    _GPU_TARGETS,
    _GPU_DOCUMENTS,
    _GPU,
    "results/chapters/{device}/cold_gpu",
)
CHAPTER = Chapter(
    name="cold_start",
    title="Cold starts planned for the first inference",
    paper="NNV12 (MobiSys 2023)",
    settings=ColdStartParams,
    targets=_TARGETS,
    stages=(COLD_START, COLD_TABLES, COLD_GPU, COLD_GPU_TABLES),
    tables="edgeplan.chapters.cold_start.gpu.page:TABLES",
    figures="edgeplan.chapters.cold_start.gpu.page:FIGURES",
    named_devices=(_TARGETS, _GPU_TARGETS),
)
