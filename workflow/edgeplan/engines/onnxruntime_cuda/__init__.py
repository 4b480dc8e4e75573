"""Runs models by ONNX Runtime on an NVIDIA GPU, through its CUDA provider: measured as a black box.

Modules:

* `session`: Runs and times models by ONNX Runtime on an NVIDIA GPU: a black box, f32 without TF32.
"""

from __future__ import annotations

from edgeplan.engines.description import Description

ENGINE = Description(
    "onnxruntime_cuda",
    "pip install 'onnxruntime-gpu[cuda,cudnn]' 'edgeplan[cuda]', without the package onnxruntime beside it",
    "edgeplan.engines.onnxruntime_cuda.session:OnnxRuntimeOnGpu",
    architectures=("x86_64",),
)
