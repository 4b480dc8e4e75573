"""GPUs, measured by themselves through the package's own kernels, and second processors of pairs: by OpenCL, and by CUDA."""

from __future__ import annotations

from edgeplan.engines.description import Description

OPENCL = Description(
    "opencl",
    "pip install 'edgeplan[runtime,partition]'",
    "edgeplan.engines.gpu.session:Opencl",
    processor="edgeplan.engines.gpu.opencl:OpenclProcessor",
    wheels=("pyopencl", "pocl-binary-distribution", "onednn-cpu-gomp", "scipy"),
    architectures=("x86_64",),
    # since 2 the steps of a run take together what it takes unmarked, beside loads of the processor itself
    protocols={"measure": "opencl/2", "mapping": "opencl-nodes/1"},
)
CUDA = Description(
    "cuda",
    "pip install 'edgeplan[runtime,partition,cuda]'",
    "edgeplan.engines.gpu.session:Cuda",
    processor="edgeplan.engines.gpu.cuda:CudaProcessor",
    wheels=("cuda-bindings", "nvidia-cuda-nvrtc", "onednn-cpu-gomp", "scipy"),
    architectures=("x86_64",),
    gpu=True,
    protocols={"measure": "cuda/1", "mapping": "cuda-nodes/1"},
)
