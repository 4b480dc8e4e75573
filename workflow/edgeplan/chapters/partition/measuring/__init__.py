"""What is measured on a pair: layers in chains, splits, models, handshakes."""
