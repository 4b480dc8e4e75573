"""Streaming weights through a budget of memory: what is loaded where and when."""
