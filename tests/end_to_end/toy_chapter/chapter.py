"""The chapter on sorting."""

from __future__ import annotations

from edgeplan.chapters.toy.settings import Params

from edgeplan.chapters.base import Chapter, Stage, Targets

_TARGETS = Targets("toy.on")
TOY = Stage(
    name="toy",
    function="edgeplan.chapters.toy.stages.toy:measure",
    targets=_TARGETS,
    params=("seed", "toy"),
    outputs={
        "table": "results/{device}/toy/sorting.csv",
        "metrics": "results/chapters/{device}/toy.json",
        "part": "results/chapters/{device}/toy.page.json",
    },
    writes=("results/{device}/toy",),
    metrics=("results/chapters/{device}/toy.json",),
    rows="data/rows/{device}/toy",
)
CHAPTER = Chapter(
    name="toy",
    title="Sorting",
    paper="none",
    settings=Params,
    targets=_TARGETS,
    stages=(TOY,),
    tables="edgeplan.chapters.toy.stages.toy:TABLES",
)
