"""Predictors of latency are learnt from sampled layers, and compared with simpler ones."""
