"""The chapter on partitions: what it measures, learns and shows."""

from __future__ import annotations

from edgeplan.chapters.base import PAIRS, Chapter, Compared, Stage, Targets, tables_stage
from edgeplan.chapters.partition.settings import PartitionParams

_MEASURED = "results/{pair}/partition"
_CARD = f"{_MEASURED}/predictors/card.json"
_CHAPTERS = "results/chapters/{pair}"


def _documents(folder: str, *frames: str) -> dict[str, str]:
    return {**{name: f"{folder}/{name}.parquet" for name in frames}, "environment": f"{folder}/environment.json"}


_DOCUMENTS = _documents(_MEASURED, "samples", "layers", "models", "handshakes", "curves", "errors", "importance")

PARTITION = Stage(
    name="partition",
    function="edgeplan.chapters.partition.stages.partition:measure_partition",
    targets=PAIRS,
    params=("seed", "partition"),
    inputs={"pair_path": "config/pairs/{pair}.yaml"},
    outputs={"card": _CARD, **_DOCUMENTS},
    paths={"work": "work/partition", "measured": _MEASURED},
    rows="data/rows/{pair}/partition",
    reads=("config/devices",),
    writes=(f"{_MEASURED}/predictors",),
    cached=(f"{_MEASURED}/predictors",),
    all_cores=True,
)
PARTITION_TABLES = tables_stage(
    "partition_tables",
    "edgeplan.chapters.partition.evaluation.page:write",
    PAIRS,
    {name: path for name, path in _DOCUMENTS.items() if name != "samples"},
    _MEASURED,
    f"{_CHAPTERS}/partition",
)
_EOP_DOCUMENTS = _documents(f"{_MEASURED}/eop", "sampled", "sweeps", "plans", "key")
EOP = Stage(
    name="partition_eop",
    function="edgeplan.chapters.partition.stages.partition_eop:measure_eop",
    targets=PAIRS,
    params=("seed", "partition"),
    inputs={"pair_path": "config/pairs/{pair}.yaml", "card": _CARD},
    outputs=_EOP_DOCUMENTS,
    paths={"work": "work/partition_eop", "predictors": f"{_MEASURED}/predictors", "measured": f"{_MEASURED}/eop"},
    rows="data/rows/{pair}/partition_eop",
    reads=("config/devices", f"{_MEASURED}/predictors"),
    all_cores=True,
)
EOP_TABLES = tables_stage(
    "partition_eop_tables",
    "edgeplan.chapters.partition.evaluation.eop_page:write",
    PAIRS,
    _EOP_DOCUMENTS,
    f"{_MEASURED}/eop",
    f"{_CHAPTERS}/partition_eop",
)
_CHECKED = f"{_MEASURED}/checked"
_CHECKED_DOCUMENTS = _documents(_CHECKED, "checked", "later")
CHECKED_PAIRS = Targets("partition.checked_pairs", wildcards=("pair",))
CHECKED = Stage(
    name="partition_checked",
    function="edgeplan.chapters.partition.stages.partition_checked:measure_checked",
    targets=CHECKED_PAIRS,
    params=("seed", "partition"),
    inputs={"pair_path": "config/pairs/{pair}.yaml"},
    outputs=_CHECKED_DOCUMENTS,
    paths={"work": "work/partition_checked", "measured": _CHECKED},
    rows="data/rows/{pair}/partition_checked",
    reads=("config/devices",),
    all_cores=True,
)
CHECKED_TABLES = tables_stage(
    "partition_checked_tables",
    "edgeplan.chapters.partition.evaluation.checked_page:write",
    CHECKED_PAIRS,
    _CHECKED_DOCUMENTS,
    _CHECKED,
    f"{_CHAPTERS}/partition_checked",
    with_figures=False,
)
CHAPTER = Chapter(
    name="partition",
    title="One model on two processors",
    paper="LiPG (EPEW 2025)",
    settings=PartitionParams,
    targets=PAIRS,
    stages=(CHECKED, CHECKED_TABLES, PARTITION, PARTITION_TABLES, EOP, EOP_TABLES),
    tables="edgeplan.chapters.partition.evaluation.checked_page:TABLES",
    figures="edgeplan.chapters.partition.evaluation.checked_page:FIGURES",
    named_devices=(Targets("partition.devices"),),
    named_pairs=(PAIRS, CHECKED_PAIRS),
    compared=(
        Compared(
            "results/pair-pocl/partition/tables/partition_table_03.csv",
            "speedup over the better single processor on pair-pocl, by model",
            "speedup",
            "model",
        ),
    ),
)
