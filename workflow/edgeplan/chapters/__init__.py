"""The chapters: each asks one question, and owns the stages, tables, figures and commands that answer it.

Modules:

* `adaptation/`: The chapter on adaptation: a new device in a minute, from the predictor of an old
  one.
* `base`: A chapter is one question, the stages that answer it, and what the report shows of it.
* `check`: Stage `check`: the values of params.yaml as a whole, before anything is built.
* `code`: Digests of the code of each stage, by which DVC tells what is current.
* `cold_start/`: Starts a network cold: kernels, weights and cores for each step, so that the first
  inference ends soonest (NNV12).
* `estimate`: The time of a whole run is told before it starts: the sum over the chapters.
* `memory/`: The chapter on memory: a model in a fraction of the memory that its weights take
  (FlexNN, MobiCom 2024).
* `params`: The schema of params.yaml: every setting, with its bounds.
* `partition/`: The chapter on partitions: one model on two processors at once, split where it pays.
* `prediction/`: Predicts the latency of a network, kernel by kernel (nn-Meter).
* `registry`: The chapters by name, in the order of the report, and what is made of all of them.
* `running`: One stage of the pipeline, run for one target in the workspace that is the current
  folder: `edgeplan stage NAME`.
* `wiring`: Files made from the stages that chapters declare: `make wire` writes dvc.yaml,
  Snakemake's rules and the digests of code.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

#: Folders beside this module in the order of the report, each with a `chapter.py`. A new chapter is a folder and a line here.
NAMES = (
    "prediction",
    "cold_start",
    "memory",
    "partition",
    "adaptation",
)


def chapter_modules(name: str) -> Iterator[ModuleType]:
    """Modules of a name in the chapters' folders, where they have one: `commands`, `protocols`."""
    for chapter in NAMES:
        if (Path(__file__).parent / chapter / f"{name}.py").is_file():
            yield import_module(f"edgeplan.chapters.{chapter}.{name}")
