"""Runs the stages of the chapter: each reads files, calls the library, and writes files.

Modules:

* `cold_gpu`: Stage `cold_gpu`: cold starts on a GPU, planned model by model and started in fresh
  processes; rows are kept by model.
* `cold_start`: Stage `cold_start`: profile models, make plans and execute them beside the stock
  engines; all that measures is here.
"""
