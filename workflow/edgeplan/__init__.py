"""Measure kernels on a device, predict the latency of any model there, and plan how to run it."""

__version__ = "0.1.0"
