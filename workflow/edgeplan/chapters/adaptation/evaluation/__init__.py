"""The chapter's tables, figures and page are made from the ladder.

Modules:

* `evidence`: Reads the evidence of the chapter: the judged models of every rung, and shares of
  them.
* `figures`: Draws the figures of the chapter on adaptation.
* `metrics`: Computes the figures of merit of the chapter: pure functions of the ladder, each with
  its formula.
* `page`: Stage `ladder_tables`: make the tables, the figure and the page of the ladder, with its
  figures of merit.
* `tables`: Tabulates the ladder and the devices of the chapter.
"""
