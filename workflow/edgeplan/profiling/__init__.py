"""Profiling finds the cost of each candidate of each step: measured on the runtime that executes plans, or predicted."""
