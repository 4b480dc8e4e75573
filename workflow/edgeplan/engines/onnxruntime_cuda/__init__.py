"""Runs models by ONNX Runtime on an NVIDIA GPU, through its CUDA provider: measured as a black box."""

from __future__ import annotations

from edgeplan.engines.description import Description

ENGINE = Description(
    "onnxruntime_cuda",
    # the two packages share a folder: edgeplan brings the one, which has to go before the other comes
    "pip install 'edgeplan[cuda]' && pip uninstall -y onnxruntime && "
    "pip install --force-reinstall 'onnxruntime-gpu[cuda,cudnn]'",
    "edgeplan.engines.onnxruntime_cuda.session:OnnxRuntimeOnGpu",
    architectures=("x86_64",),
    protocols={"measure": "onnxruntime-cuda/1", "mapping": "onnxruntime-cuda-nodes/1"},
)
