"""The planners of the chapter."""
