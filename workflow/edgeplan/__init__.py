"""Measure kernels on a device, predict the latency of any model there, and plan how to run it.

`predict`, `measure`, `plan_cold_start`, `run`, `plan_memory` and `run_memory` are the library's interface: docs/api.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeplan.api import (
        ColdStartPlan,
        Run,
        measure,
        plan_cold_start,
        plan_memory,
        plan_partition,
        predict,
        run,
        run_memory,
        run_partition,
    )
    from edgeplan.comparison import Measured
    from edgeplan.graph.onnx.prepare import Preparation
    from edgeplan.prediction import Prediction

__version__ = "0.1.0"
__all__ = [
    "ColdStartPlan",
    "Measured",
    "Prediction",
    "Preparation",
    "Run",
    "__version__",
    "measure",
    "plan_cold_start",
    "plan_memory",
    "plan_partition",
    "predict",
    "run",
    "run_memory",
    "run_partition",
]
_ELSEWHERE = {
    "Measured": "edgeplan.comparison",
    "Prediction": "edgeplan.prediction",
    "Preparation": "edgeplan.graph.onnx.prepare",
}


def __getattr__(name: str) -> Any:
    """What the interface consists of, imported on first use: `import edgeplan` itself waits for nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  see above

    return getattr(import_module(_ELSEWHERE.get(name, "edgeplan.api")), name)
