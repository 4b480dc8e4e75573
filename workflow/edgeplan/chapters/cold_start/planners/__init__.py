"""The planners of the chapter: pure functions from a profile to a schedule; they know no device."""
