"""Own OpenCL kernels: which are launched for a step, over how many work items, and what they read. No OpenCL is imported here."""
