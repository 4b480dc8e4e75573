"""Which operators an engine runs as one: found by timing pairs of them."""
