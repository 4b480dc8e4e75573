"""Processes that are measured from their first instruction: how they are started, what is around them, what they tell."""
