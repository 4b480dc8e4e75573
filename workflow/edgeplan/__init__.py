"""Measure kernels on a device, predict the latency of any model there, and plan how to run it.

`predict`, `measure`, `plan_front`, `plan_cold_start`, `plan_memory`, `plan_partition`, `open_plan`,
`run`, `prepare` and `export` are the library's interface: docs/api.md.

Modules:

* `api`: Offers to programs what belongs to no chapter: `edgeplan.export` and `edgeplan.prepare`
  (docs/api.md).
* `chapters/`: The chapters: each asks one question, and owns the stages, tables, figures and
  commands that answer it.
* `checking`: Computes references of a run in a process of its own: the one that runs a plan loads
  neither onnx nor ONNX Runtime.
* `cli/`: Parses and runs the commands of edgeplan.
* `cuda/`: CUDA runs the kernels of `opencl` on NVIDIA GPUs, whose OpenCL shares no memory while
  kernels run.
* `devices/`: Describes devices: an engine with its settings on the cores of a machine.
* `engines/`: This package holds inference engines, a folder each, and what they have in common.
* `errors`: Defines the errors edgeplan raises on purpose.
* `front`: The front of a model: its plans that no other plan beats in first inference, later
  inferences and memory at once.
* `gpu_start/`: Cold starts on a GPU (NNV12, section 3.4): kernels are loaded or compiled, weights
  packed and uploaded, while others run.
* `graph/`: Neural networks are static graphs of operators here: they are read, costed, and split
  into kernels.
* `handover`: Hands inferences over: a cold start answers on the host until a second processor is
  ready for the same model.
* `measurement/`: Measures subjects on a device: references, blocks, the lock and the row store.
* `opencl/`: Dispatches own OpenCL kernels: which run a step, over how many work items, and what
  they read.
* `opening`: Opens a plan folder: `open_plan` hands over a session, whatever the kind of the plan.
* `planning/`: Planners are pure functions from a profile and a budget to a plan; they know no
  engine, no device and no runtime.
* `predictors/`: Predicts latency by features, gradient-boosted trees for each kernel kind and
  implementation, and sums over whole models.
* `processors/`: Processors run steps of one program side by side, on memory that they share.
* `profiling/`: Profiling finds the cost of each candidate of each step: measured on the runtime
  that executes plans, or predicted.
* `progress`: Shows progress: on a terminal a bar with an estimate of the time left, elsewhere a log
  line now and then.
* `report/`: Writes the report of a device: the pages that the chapters' tables and figures are
  shown in.
* `reporting/`: Tables, figures and reports of all chapters are made with these modules.
* `runs`: Runs plans: one function and one result for plan folders of every kind (docs/api.md).
* `runtime/`: The oneDNN runtime: executes ONNX graphs, and nothing but what a plan says (design,
  section 4).
* `support/`: Every layer may use these modules: they know nothing of models, devices or chapters.
* `terminal`: Writes to a terminal: text in any encoding, names from files without control
  characters, pipes that close.
* `testing/`: Tests what others add against what edgeplan asks of it.
* `workloads/`: This package holds the models that chapters on planning run, beside the zoo.
* `workspace`: Finds device files, measured rows and results: in a workspace found upwards from
  here, or in what the package ships.
* `writable`: Tries folders before anything is measured, and tells what is wrong with those that may
  not be written to.
* `zoo/`: Builds model families, their seeded variants, and the base models behind the prior
  distribution (nn-Meter, section 3).
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from edgeplan.api import Prepared, export, prepare
    from edgeplan.chapters.cold_start.api import ColdStartPlan, plan_cold_start
    from edgeplan.chapters.memory.api import plan_memory
    from edgeplan.chapters.memory.plan import MemoryPlanned
    from edgeplan.chapters.partition.api import plan_partition
    from edgeplan.chapters.partition.planned import PlannedModel
    from edgeplan.chapters.prediction.api import measure, predict
    from edgeplan.chapters.prediction.comparison import Measured
    from edgeplan.chapters.prediction.model_prediction import Prediction
    from edgeplan.errors import EdgeplanError
    from edgeplan.front import Front, plan_front
    from edgeplan.graph.onnx.prepare import Preparation
    from edgeplan.opening import open_plan
    from edgeplan.runs import Run, run
    from edgeplan.runtime.plan_session import Session

__version__ = "0.1.0"
__all__ = [
    "ColdStartPlan",
    "EdgeplanError",
    "Front",
    "Measured",
    "MemoryPlanned",
    "PlannedModel",
    "Prediction",
    "Preparation",
    "Prepared",
    "Run",
    "Session",
    "__version__",
    "export",
    "measure",
    "open_plan",
    "plan_cold_start",
    "plan_front",
    "plan_memory",
    "plan_partition",
    "predict",
    "prepare",
    "run",
]
_NAMES = {
    "edgeplan.api": ("Prepared", "export", "prepare"),
    "edgeplan.chapters.cold_start.api": ("ColdStartPlan", "plan_cold_start"),
    "edgeplan.chapters.memory.api": ("plan_memory",),
    "edgeplan.chapters.memory.plan": ("MemoryPlanned",),
    "edgeplan.chapters.partition.api": ("plan_partition",),
    "edgeplan.chapters.partition.planned": ("PlannedModel",),
    "edgeplan.chapters.prediction.api": ("measure", "predict"),
    "edgeplan.chapters.prediction.comparison": ("Measured",),
    "edgeplan.chapters.prediction.model_prediction": ("Prediction",),
    "edgeplan.errors": ("EdgeplanError",),
    "edgeplan.front": ("Front", "plan_front"),
    "edgeplan.graph.onnx.prepare": ("Preparation",),
    "edgeplan.runs": ("Run", "run"),
    "edgeplan.opening": ("open_plan",),
    "edgeplan.runtime.plan_session": ("Session",),
}


def __getattr__(name: str) -> _typing.Any:
    """Import a part of the interface on first use: `import edgeplan` itself waits for nothing."""
    for module, names in _NAMES.items():
        if name in names:
            return getattr(_import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the interface and what every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
