"""The chapter on first inferences within a budget: what it measures and shows."""

from __future__ import annotations

from edgeplan.chapters.base import Chapter, Stage, Targets, tables_stage
from edgeplan.chapters.joint.settings import JointParams

_TARGETS = Targets("joint.devices")
_MEASURED = "results/{device}/joint"
_DOCUMENTS = {"starts": f"{_MEASURED}/starts.parquet", "environment": f"{_MEASURED}/environment.json"}

JOINT = Stage(
    name="joint",
    function="edgeplan.chapters.joint.stages.joint:measure_joint",
    targets=_TARGETS,
    params=("seed", "joint"),
    inputs={"device_path": "config/devices/{device}.yaml"},
    outputs=_DOCUMENTS,
    paths={"work": "work/joint"},
    rows="data/rows/{device}/joint",
    all_cores=True,
)
JOINT_TABLES = tables_stage(
    "joint_tables",
    "edgeplan.chapters.joint.evaluation.page:write",
    _TARGETS,
    _DOCUMENTS,
    _MEASURED,
    "results/chapters/{device}/joint",
)
CHAPTER = Chapter(
    name="joint",
    title="First inferences within a budget",
    paper="none",
    settings=JointParams,
    targets=_TARGETS,
    stages=(JOINT, JOINT_TABLES),
    tables="edgeplan.chapters.joint.evaluation.page:TABLES",
    figures="edgeplan.chapters.joint.evaluation.page:FIGURES",
    named_devices=(_TARGETS,),
)
