"""Streaming weights through a budget of memory: what is loaded where and when, and how near that is to the best there is."""
