"""Tables, figures and reports of all chapters are made with these modules.

Modules:

* `bars`: Bars are limits that figures of merit are held against.
* `captions`: Reads captions: texts beside the chapter, read when a report is written and by no
  stage that makes a table or figure.
* `chapter_report`: A chapter's report is one value: it says what is read of a target, what is made
  of it, written, and handed over as a page.
* `drawing`: Figures of all chapters share their size, fonts, and colours that colour-blind readers
  can tell apart.
* `environment`: Flattens a captured environment for a report.
* `estimates`: Computes a chapter's figures of merit: functions of its evidence, each with what
  chance leaves open of it.
* `grade`: A grade says how far a chapter's figures can be trusted: good, fair or poor.
* `kit`: Declares, makes and writes every chapter's tables and figures, and hands them over to its
  page.
* `metrics`: Computes nn-Meter's metrics of predictions (section 7.1): RMSE, RMSPE, +-5 % and +-10 %
  accuracy, and those of intervals.
* `page`: A page is a chapter's part of the report: values that say what is shown, not how it is
  laid out.
* `partition_gantt`: Draws a plan of a pair: one line for each processor, as text for terminals and
  as SVG.
* `svg`: Writes figures as SVG: the same bytes every time, text as text, and colours that follow the
  page's.
* `table`: This module writes a table to files and reads its cells back.
* `uncertainty`: Intervals tell how much of a figure, or of a difference between two predictors, is
  chance.
"""
