"""An OpenCL device is measured by itself, through the package's own kernels: the second processor of a pair."""

from __future__ import annotations

from edgeplan.engines.description import Description

ENGINE = Description(
    "opencl",
    "pip install 'edgeplan[runtime,partition]'",
    "edgeplan.engines.opencl.session:Opencl",
    processor="edgeplan.processors.opencl:OpenclProcessor",
    wheels=("pyopencl", "pocl-binary-distribution", "onednn-cpu-gomp", "scipy"),
    architectures=("x86_64",),
    # since 2 the steps of a run take together what it takes unmarked, beside loads of the processor itself
    protocols={"measure": "opencl/2", "mapping": "opencl-nodes/1"},
)
