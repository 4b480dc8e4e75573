"""The chapters: each asks one question, and owns the stages, tables, figures and commands that answer it.

Modules:

* `adaptation/`: Adapts predictors to a new device in a minute, from the predictor of an old one.
* `base`: A chapter is one question, the stages that answer it, and what the report shows of it.
* `check`: Stage `check`: check the values of params.yaml as a whole, before anything is built.
* `code`: Digests the code of each stage, by which DVC tells what is current.
* `cold_start/`: Starts a network cold: kernels, weights and cores for each step, so that the first
  inference ends soonest (NNV12).
* `estimate`: Estimates the time of a whole run before it starts: the sum over the chapters.
* `joint/`: The chapter on first inferences within a budget: kernels, weights and memory planned as
  one, from process start on.
* `memory/`: The chapter on memory: a model in a fraction of the memory that its weights take
  (FlexNN, MobiCom 2024).
* `params`: Declares the schema of params.yaml: every setting, with its bounds.
* `partition/`: The chapter on partitions: one model on two processors at once, split where it pays.
* `prediction/`: Predicts the latency of a network, kernel by kernel (nn-Meter).
* `registry`: Registers the chapters by name, in the order of the report, and what is made of all of
  them.
* `running`: Runs one stage of the pipeline for one target, in the workspace that is the current
  folder: `edgeplan stage NAME`.
* `wiring`: Writes files made from the stages that chapters declare (`make wire`): dvc.yaml,
  Snakemake's rules, digests of code.
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
    "joint",
    "partition",
    "adaptation",
)


def chapter_modules(name: str) -> Iterator[ModuleType]:
    """Yield the modules of a name in the chapters' folders, where they have one: `commands`, `protocols`."""
    for chapter in NAMES:
        if (Path(__file__).parent / chapter / f"{name}.py").is_file():
            yield import_module(f"edgeplan.chapters.{chapter}.{name}")
