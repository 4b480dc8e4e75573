"""An NVIDIA GPU, or a slice of one, is the second processor of a pair, through CUDA."""

from __future__ import annotations

from edgeplan.engines.description import Description

ENGINE = Description(
    "cuda",
    "pip install 'edgeplan[runtime,partition,cuda]'",
    processor="edgeplan.processors.cuda:CudaProcessor",
    wheels=("cuda-bindings", "nvidia-cuda-nvrtc", "onednn-cpu-gomp", "llvmlite", "numba", "scipy"),
    architectures=("x86_64",),
)
