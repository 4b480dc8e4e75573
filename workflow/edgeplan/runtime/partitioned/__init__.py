"""Programs that run on two processors side by side, steps whole or split by channels."""
