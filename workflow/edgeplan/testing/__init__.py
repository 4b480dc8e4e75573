"""Suites that hold what others add to what edgeplan asks of it. They need pytest."""
