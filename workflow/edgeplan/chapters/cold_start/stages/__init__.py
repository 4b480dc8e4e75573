"""Runs the stages of the chapter: each reads files, calls the library, and writes files.

Modules:

* `cold_start`: Stage `cold_start`: models profiled, plans made and executed beside the stock
  engines; all that measures is here.
"""
