"""Holds the stage of the chapter that measures.

Modules:

* `joint`: Stage `joint`: models planned within a budget and started by all ways, model by model.
"""
