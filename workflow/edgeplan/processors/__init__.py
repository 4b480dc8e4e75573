"""Processors run steps of one program side by side, on memory that they share."""
