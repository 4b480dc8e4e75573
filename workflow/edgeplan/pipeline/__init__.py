"""The stages of the pipeline: each reads files, calls the library, and writes files.

The scripts in workflow/scripts call these.
"""
