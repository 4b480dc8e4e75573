"""The chapter's tables, figures and page are made from the ladder.

Modules:

* `evidence`: Evidence of the chapter: the judged models of every rung, and shares of them.
* `figures`: The figures of the chapter.
* `metrics`: The figures of merit of the chapter: pure functions of the ladder, the formula of each
  in its docstring.
* `page`: Stage `ladder_tables`: the tables, the figure and the page of the ladder, with its figures
  of merit.
* `tables`: The tables of the chapter.
"""
