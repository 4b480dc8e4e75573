"""Metrics, the paper's tables and figures, and the report: pure functions from tables to tables."""
