"""Runs the stages of the chapter: each reads files, calls the library, and writes files."""
