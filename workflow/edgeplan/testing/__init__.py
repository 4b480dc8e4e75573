"""Tests what others add against what edgeplan asks of it. They need pytest."""
