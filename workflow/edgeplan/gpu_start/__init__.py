"""Cold starts on a GPU (NNV12, section 3.4): kernels are loaded or compiled, weights packed and uploaded, while others run."""
