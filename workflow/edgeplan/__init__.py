"""Measure kernels on a device, predict the latency of any model there, and plan how to run it.

`predict`, `measure`, `plan_cold_start`, `plan_memory`, `plan_partition`, `open_plan`, `run`, `prepare` and `export` are the
library's interface: docs/api.md.
"""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
    from edgeplan.api import (
        ColdStartPlan,
        Prepared,
        export,
        measure,
        plan_cold_start,
        plan_memory,
        plan_partition,
        predict,
        prepare,
    )
    from edgeplan.chapters.memory.plan import MemoryPlanned
    from edgeplan.chapters.partition.planned import PlannedModel
    from edgeplan.comparison import Measured
    from edgeplan.errors import EdgeplanError
    from edgeplan.graph.onnx.prepare import Preparation
    from edgeplan.prediction import Prediction
    from edgeplan.runs import Run, run
    from edgeplan.runtime.open_plan import Session, open_plan

__version__ = "0.1.0"
__all__ = [
    "ColdStartPlan",
    "EdgeplanError",
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
    "plan_memory",
    "plan_partition",
    "predict",
    "prepare",
    "run",
]
_ELSEWHERE = {
    "EdgeplanError": "edgeplan.errors",
    "Measured": "edgeplan.comparison",
    "MemoryPlanned": "edgeplan.chapters.memory.plan",
    "PlannedModel": "edgeplan.chapters.partition.planned",
    "Prediction": "edgeplan.prediction",
    "Preparation": "edgeplan.graph.onnx.prepare",
    "Run": "edgeplan.runs",
    "Session": "edgeplan.runtime.open_plan",
    "open_plan": "edgeplan.runtime.open_plan",
    "run": "edgeplan.runs",
}


def __getattr__(name: str) -> _typing.Any:
    """Import a part of the interface on first use: `import edgeplan` itself waits for nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  see above

    return getattr(import_module(_ELSEWHERE.get(name, "edgeplan.api")), name)


def __dir__() -> list[str]:
    """List the interface and what every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
