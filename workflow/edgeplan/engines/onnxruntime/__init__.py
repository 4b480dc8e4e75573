"""Runs models by ONNX Runtime: measured by node, and started cold."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting
from edgeplan.engines.onnxruntime.cuda_provider import OPTIONS

_START, _COLD = "edgeplan.engines.onnxruntime.start", "edgeplan.engines.onnxruntime.cold"
_AS_SAVED = {"level": "ORT_DISABLE_ALL"}
_NO_PACKING = "session.disable_prepacking"
_FRUGAL = {**_AS_SAVED, "entries": [_NO_PACKING], "arena": False}
_MAPPED = ["session.use_memory_mapped_ort_model", "session.use_ort_model_bytes_for_initializers"]
ENGINE = Description(
    "onnxruntime",
    "pip install onnxruntime",
    "edgeplan.engines.onnxruntime.session:OnnxRuntime",
    MappingProxyType(
        {
            "onnxruntime": Setting(_START, "onnxruntime", "ONNX Runtime"),
            "onnxruntime-optimised": Setting(
                _START, "onnxruntime", "ONNX Runtime, optimised", f"{_COLD}:optimised", _AS_SAVED, stores_work=True
            ),
            "onnxruntime-prepacked": Setting(
                _START, "onnxruntime", "ONNX Runtime, packed", f"{_COLD}:prepacked", _AS_SAVED, stores_work=True
            ),
            "onnxruntime-mapped": Setting(
                _START,
                "onnxruntime",
                "ONNX Runtime, mapped",
                f"{_COLD}:mapped",
                {"entries": [*_MAPPED, "session.prepack.enable_parallel"]},
                stores_work=True,
            ),
            "onnxruntime-cuda": Setting(
                f"{_START}_cuda",
                "onnxruntime-gpu",
                "ONNX Runtime, CUDA",
                f"{_COLD}:cuda",
                {"provider": dict(OPTIONS)},
                starts_once=True,
                python="EDGEPLAN_CUDA_PYTHON",
            ),
            "onnxruntime-frugal": Setting(_START, "onnxruntime", "ONNX Runtime, frugal", f"{_COLD}:external", _FRUGAL),
            "onnxruntime-offline": Setting(
                _START,
                "onnxruntime",
                "ONNX Runtime, optimised beforehand, mapped",
                f"{_COLD}:offline",
                _FRUGAL,
                stores_work=True,
            ),
            "onnxruntime-mapped-frugal": Setting(
                _START,
                "onnxruntime",
                "ONNX Runtime, its own format, mapped, frugal",
                f"{_COLD}:mapped",
                {**_FRUGAL, "entries": [*_MAPPED, _NO_PACKING]},
                stores_work=True,
            ),
        }
    ),
    wheels=("onnxruntime",),
    protocols={"measure": "onnxruntime/2", "mapping": "2e4960ae", "cold": "cold-onnxruntime/2"},
    earlier={"measure": ("a29787b50778deab",), "cold": ("d1fde67e447a6f2c",)},
)
