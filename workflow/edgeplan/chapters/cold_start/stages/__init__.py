"""Runs the stages of the chapter: each reads files, calls the library, and writes files.

Modules:

* `cold_start`: Stage `cold_start`: profile models, make plans and execute them beside the stock
  engines; all that measures is here.
"""
