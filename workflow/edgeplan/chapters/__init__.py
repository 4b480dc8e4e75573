"""The chapters: each asks one question, and owns the stages, tables and figures that answer it."""

#: Folders beside this module in the order of the report, each with a `chapter.py`. A new chapter is a folder and a line here.
NAMES = ("prediction", "cold_start", "memory", "partition")
