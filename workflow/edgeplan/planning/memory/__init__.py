"""Weights are streamed through a budget of memory: plans say what is loaded where and when."""
