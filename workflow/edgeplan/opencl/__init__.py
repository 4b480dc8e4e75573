"""Dispatches own OpenCL kernels: which run a step, over how many work items, and what they read.

No OpenCL is imported here.
"""
