"""An NVIDIA GPU, or a slice of one, is measured by itself through CUDA, and is the second processor of a pair."""

from __future__ import annotations

from edgeplan.engines.description import Description

ENGINE = Description(
    "cuda",
    "pip install 'edgeplan[runtime,partition,cuda]'",
    "edgeplan.engines.cuda.session:Cuda",
    processor="edgeplan.processors.cuda:CudaProcessor",
    wheels=("cuda-bindings", "nvidia-cuda-nvrtc", "onednn-cpu-gomp", "scipy"),
    architectures=("x86_64",),
    gpu=True,
    protocols={"measure": "cuda/1", "mapping": "cuda-nodes/1"},
)
