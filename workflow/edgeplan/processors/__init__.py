"""Processors run steps of one program side by side, on memory that they share.

Modules:

* `onednn`: Runs steps by oneDNN on some cores: the CPU of a pair.
* `opencl`: Runs steps on OpenCL devices as processors: own kernels on memory that the host shares
  as far as the device can.
"""
