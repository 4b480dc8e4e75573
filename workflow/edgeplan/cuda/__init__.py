"""CUDA runs the kernels of `opencl` on NVIDIA GPUs, whose OpenCL shares no memory while kernels run."""
