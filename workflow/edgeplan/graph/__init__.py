"""Neural networks are static graphs of operators here: they are read, costed, and split into kernels."""
