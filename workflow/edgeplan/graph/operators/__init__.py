"""Operators stand in a file a family, which tells how each is read, checked, costed, named and lowered to steps."""
