"""Settings of the engines whose cold inference is measured: one file an engine, one line in `registry.py` a setting."""
