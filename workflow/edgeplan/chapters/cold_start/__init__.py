"""Starts a network cold: kernels, weights and cores for each step, so that the first inference ends soonest (NNV12)."""
