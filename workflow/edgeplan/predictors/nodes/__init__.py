"""Predicts nodes as an engine executes them, and models by their nodes."""
