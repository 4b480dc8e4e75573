"""Predicts the latency of a network, kernel by kernel (nn-Meter)."""
