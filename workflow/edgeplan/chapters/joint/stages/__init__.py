"""Holds the stage of the chapter that measures."""
