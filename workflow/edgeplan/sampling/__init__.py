"""Choosing which kernels to measure, and measuring them."""
