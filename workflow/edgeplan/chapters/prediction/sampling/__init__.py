"""Decides which kernels are measured: adaptive sampling, and what it is held against."""
