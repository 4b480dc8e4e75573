"""Detects which operators an engine runs as one, by timing pairs of them."""
