"""The chapter on memory: what it measures and shows."""

from __future__ import annotations

from edgeplan.chapters.base import Chapter, Compared, Stage, Targets, tables_stage
from edgeplan.chapters.memory.settings import MemoryParams

_TARGETS = Targets("memory.devices")
_MEASURED = "results/{device}/memory"
_DOCUMENTS = {"runs": f"{_MEASURED}/runs.parquet", "environment_path": f"{_MEASURED}/environment.json"}

MEMORY = Stage(
    name="memory",
    function="edgeplan.chapters.memory.stages.memory:measure_memory",
    targets=_TARGETS,
    params=("seed", "memory"),
    inputs={"device": "config/devices/{device}.yaml"},
    outputs=_DOCUMENTS,
    paths={"work": "work/memory"},
    rows="data/rows/{device}/memory",
    all_cores=True,
)
MEMORY_TABLES = tables_stage(
    "memory_tables",
    "edgeplan.chapters.memory.evaluation.page:write",
    _TARGETS,
    _DOCUMENTS,
    _MEASURED,
    "results/chapters/{device}/memory",
)
CHAPTER = Chapter(
    name="memory",
    title="Models in a fraction of their memory",
    paper="FlexNN (MobiCom 2024)",
    settings=MemoryParams,
    targets=_TARGETS,
    stages=(MEMORY, MEMORY_TABLES),
    tables="edgeplan.chapters.memory.evaluation.tables:MEMORY_TABLES",
    figures="edgeplan.chapters.memory.evaluation.tables:MEMORY_FIGURES",
    named_devices=(_TARGETS,),
    compared=(
        Compared(
            "results/cpu-onednn/memory/tables/memory_least.csv",
            "least peak that runs on cpu-onednn (MiB), by model",
            "peak_mib",
            "model",
        ),
    ),
)
