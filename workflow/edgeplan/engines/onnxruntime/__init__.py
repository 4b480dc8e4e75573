"""Runs models by ONNX Runtime: measured by node, and started cold.

Modules:

* `cold`: Starts ONNX Runtime cold on its CPU execution provider, f32: its default, and what it
  offers for a faster start.
* `cuda_cold`: Starts ONNX Runtime cold on an NVIDIA GPU through its CUDA execution provider, f32.
* `cuda_provider`: Names ONNX Runtime's CUDA provider, loads the libraries that it needs, and gives
  the options that all its sessions share.
* `nodes`: Tells which operators of the original graph ONNX Runtime runs in each node of its
  optimised model.
* `offline`: ONNX Runtime with the least anonymous memory that it offers at full speed: optimised
  beforehand, its weights mapped.
* `reference`: ONNX Runtime's outputs are the reference that outputs of plans are checked against.
* `session`: Runs and times models by ONNX Runtime on the CPU.
"""

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
