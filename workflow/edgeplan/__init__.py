"""Measure kernels on a device, predict the latency of any model there, and plan how to run it.

`predict`, `measure`, `compare`, `plan_front`, `plan_cold_start`, `plan_memory`, `plan_partition`, `open_plan`,
`run`, `prepare` and `export` are the library's interface: docs/api.md.
"""

from __future__ import annotations

from importlib import import_module as _import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from edgeplan.api import Prepared, export, prepare
    from edgeplan.chapters.cold_start.api import ColdStartPlan, plan_cold_start
    from edgeplan.chapters.memory.api import plan_memory
    from edgeplan.chapters.memory.plan import MemoryPlanned
    from edgeplan.chapters.partition.api import plan_partition
    from edgeplan.chapters.partition.planned import PlannedModel
    from edgeplan.chapters.prediction.api import Measured, Prediction, measure, predict
    from edgeplan.comparing.api import compare
    from edgeplan.comparing.result import Comparison
    from edgeplan.errors import EdgeplanError
    from edgeplan.front import Front, plan_front
    from edgeplan.graph.onnx.prepare import Preparation
    from edgeplan.opening import open_plan
    from edgeplan.runs import Run, run
    from edgeplan.runtime.plan_session import Session

__version__ = "0.1.0"
__all__ = [
    "ColdStartPlan",
    "Comparison",
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
    "compare",
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
    "edgeplan.chapters.prediction.api": ("Measured", "Prediction", "measure", "predict"),
    "edgeplan.comparing.api": ("compare",),
    "edgeplan.comparing.result": ("Comparison",),
    "edgeplan.errors": ("EdgeplanError",),
    "edgeplan.front": ("Front", "plan_front"),
    "edgeplan.graph.onnx.prepare": ("Preparation",),
    "edgeplan.runs": ("Run", "run"),
    "edgeplan.opening": ("open_plan",),
    "edgeplan.runtime.plan_session": ("Session",),
}


def __getattr__(name: str) -> Any:
    """Import a part of the interface on first use: `import edgeplan` itself waits for nothing."""
    for module, names in _NAMES.items():
        if name in names:
            return getattr(_import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the interface and what every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
