"""Processors run steps of one program side by side, on memory that they share.

Modules:

* `cuda`: Runs steps on NVIDIA GPUs as processors: the kernels of OpenCL devices through CUDA, on
  the whole GPU or a slice of it.
* `onednn`: Runs steps by oneDNN on some cores: the CPU of a pair.
* `opencl`: Runs steps on OpenCL devices as processors: own kernels on memory that the host shares
  as far as the device can.
"""
