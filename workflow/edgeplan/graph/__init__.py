"""Neural networks as static graphs of operators: reading, costing, and splitting into kernels."""
