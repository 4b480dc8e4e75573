"""The stages of the chapter."""
