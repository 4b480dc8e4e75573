"""An OpenCL device is measured by itself, through the package's own kernels: the second processor of a pair.

Modules:

* `dispatching`: Runs a model on a processor alone that dispatches kernels of its own: f32,
  activations in blocks of channels.
* `session`: Runs a model on an OpenCL device alone.
* `trial`: Tries vectors of one width in a process: a model of the kernels is run and checked by
  ONNX Runtime (`opencl.widest`).
"""

from __future__ import annotations

from edgeplan.engines.description import Description

ENGINE = Description(
    "opencl",
    "pip install 'edgeplan[runtime,partition]'",
    "edgeplan.engines.opencl.session:Opencl",
    processor="edgeplan.processors.opencl:OpenclProcessor",
    wheels=("pyopencl", "pocl-binary-distribution", "onednn-cpu-gomp", "llvmlite", "numba", "scipy"),
    architectures=("x86_64",),
)
