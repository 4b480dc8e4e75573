"""Describes devices: an engine with its settings on the cores of a machine."""
