"""Starts and measures processes from their first instruction: what is around them, and what they tell."""
