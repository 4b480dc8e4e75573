"""Tables, figures and figures of merit of the chapter on memory.

Modules:

* `evidence`: Evidence of the chapter on memory is one table of measured rows, and parts of it.
* `figures`: The figures of the chapter on memory.
* `metrics`: The figures of merit of the chapter on memory: pure functions of the measured rows, the
  formula of each in its docstring.
* `page`: The chapter on memory: its headline figure and cards, findings, figures and tables.
* `tables`: The tables of the chapter on memory.
"""
