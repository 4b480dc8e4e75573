"""This package holds inference engines, a folder each, and what they have in common."""
