"""Predicts latency by features, gradient-boosted trees for each kernel kind and implementation, and sums over whole models."""
