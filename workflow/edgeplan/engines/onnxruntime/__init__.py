"""Runs models by ONNX Runtime: measured by node, and started cold."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_COLD = "edgeplan.engines.onnxruntime.cold"
ENGINE = Description(
    "onnxruntime",
    "pip install onnxruntime",
    "edgeplan.engines.onnxruntime.session:OnnxRuntime",
    MappingProxyType(
        {
            "onnxruntime": Setting(f"{_COLD}:OnnxRuntimeDefault", "onnxruntime", "ONNX Runtime"),
            "onnxruntime-optimised": Setting(
                f"{_COLD}:OnnxRuntimeOptimised", "onnxruntime", "ONNX Runtime, optimised", stores_work=True
            ),
            "onnxruntime-prepacked": Setting(
                f"{_COLD}:OnnxRuntimePrepacked", "onnxruntime", "ONNX Runtime, packed", stores_work=True
            ),
            "onnxruntime-cuda": Setting(
                "edgeplan.engines.onnxruntime.cuda_cold:OnnxRuntimeCuda", "onnxruntime", "ONNX Runtime, CUDA"
            ),
            "onnxruntime-frugal": Setting(f"{_COLD}:OnnxRuntimeFrugal", "onnxruntime", "ONNX Runtime, frugal"),
            "onnxruntime-offline": Setting(
                "edgeplan.engines.onnxruntime.offline:OnnxRuntimeOffline",
                "onnxruntime",
                "ONNX Runtime, optimised beforehand, mapped",
                stores_work=True,
            ),
        }
    ),
    wheels=("onnxruntime",),
)
