"""Operators, a file a family: how each is read, checked, costed, named and lowered to steps."""
