"""Planners are pure functions from a profile and a budget to a plan; they know no engine, no device and no runtime."""
