"""The stages of the chapter on memory.

Modules:

* `memory`: Stage `memory`: plans for budgets of memory, run beside stock engines; all that measures
  is here.
"""
