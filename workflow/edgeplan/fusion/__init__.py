"""Fusion rules: what a device runs as one kernel, found by timing it as a black box (nn-Meter, section 4)."""
