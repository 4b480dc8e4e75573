"""Partitions beyond their planning: how plans are shown."""
