"""Inference engines, one file each."""
