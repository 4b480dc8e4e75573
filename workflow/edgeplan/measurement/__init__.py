"""Measuring: references, blocks, the lock and the row store."""
