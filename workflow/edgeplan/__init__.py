"""Measure kernels on a device, predict the latency of any model there, and plan how to run it.

`predict`, `measure`, `plan_cold_start`, `plan_memory`, `plan_partition`, `run`, `run_memory`, `run_partition`, `prepare` and
`export` are the library's interface: docs/api.md.
"""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
    from edgeplan.api import (
        ColdStartPlan,
        Prepared,
        Run,
        export,
        measure,
        plan_cold_start,
        plan_memory,
        plan_partition,
        predict,
        prepare,
        run,
        run_memory,
        run_partition,
    )
    from edgeplan.chapters.memory.inference import MemoryRun
    from edgeplan.chapters.memory.plan import MemoryPlanned
    from edgeplan.chapters.partition.inference import PartitionRun
    from edgeplan.chapters.partition.planned import PlannedModel
    from edgeplan.chapters.prediction.comparison import Measured
    from edgeplan.chapters.prediction.model_prediction import Prediction
    from edgeplan.errors import EdgeplanError
    from edgeplan.graph.onnx.prepare import Preparation

__version__ = "0.1.0"
__all__ = [
    "ColdStartPlan",
    "EdgeplanError",
    "Measured",
    "MemoryPlanned",
    "MemoryRun",
    "PartitionRun",
    "PlannedModel",
    "Prediction",
    "Preparation",
    "Prepared",
    "Run",
    "__version__",
    "export",
    "measure",
    "plan_cold_start",
    "plan_memory",
    "plan_partition",
    "predict",
    "prepare",
    "run",
    "run_memory",
    "run_partition",
]
_ELSEWHERE = {
    "EdgeplanError": "edgeplan.errors",
    "Measured": "edgeplan.chapters.prediction.comparison",
    "MemoryPlanned": "edgeplan.chapters.memory.plan",
    "MemoryRun": "edgeplan.chapters.memory.inference",
    "PartitionRun": "edgeplan.chapters.partition.inference",
    "PlannedModel": "edgeplan.chapters.partition.planned",
    "Prediction": "edgeplan.chapters.prediction.model_prediction",
    "Preparation": "edgeplan.graph.onnx.prepare",
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
