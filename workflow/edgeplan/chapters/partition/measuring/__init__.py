"""These modules measure on a pair: layers in chains, splits, models, handshakes."""
