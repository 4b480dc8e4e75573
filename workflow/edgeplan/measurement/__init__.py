"""Measures subjects on a device: references, blocks, the lock and the row store."""
