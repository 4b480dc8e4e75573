"""CUDA runs the kernels of `opencl` on NVIDIA GPUs, whose OpenCL shares no memory while kernels run.

Modules:

* `building`: Builds the kernels for CUDA: the sources that OpenCL devices run, behind a prelude,
  compiled by NVRTC and kept.
* `contexts`: Contexts of a GPU, or of a slice of one, are opened once in a process, with the
  modules that were loaded into them.
* `driver`: Calls the CUDA driver and NVRTC through cuda-bindings; every error of theirs becomes one
  of edgeplan's.
"""
