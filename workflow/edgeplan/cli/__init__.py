"""The command line."""

from edgeplan.cli.commands import app, main

__all__ = ["app", "main"]
