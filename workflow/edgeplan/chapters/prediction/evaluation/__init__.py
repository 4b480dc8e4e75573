"""Evaluates the chapter: evidence, tables, figures, figures of merit and findings."""
