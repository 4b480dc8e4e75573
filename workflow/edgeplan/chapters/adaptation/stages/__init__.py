"""Runs the stages of the chapter on adaptation."""
