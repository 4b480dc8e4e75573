"""Tables, figures and reports of all chapters are made with these modules.

Modules:

* `bars`: Bars are limits that figures of merit are held against.
* `captions`: Captions: a text beside the chapter, read when a report is written and by no stage
  that makes a table or draws a figure.
* `chapter_report`: A chapter's report is one value: it says what is read of a target, what is made
  of it, written, and handed over as a page.
* `drawing`: Figures of all chapters share their size, fonts, and colours that colour-blind readers
  can tell apart.
* `environment`: A captured environment as a report shows it.
* `estimates`: Figures of merit of a chapter: functions of its evidence, each with what chance
  leaves open of it.
* `grade`: A grade says how far a chapter's figures can be trusted: good, fair or poor.
* `kit`: Every chapter declares its tables and figures by this kit, which makes, writes and hands
  them over to its page.
* `metrics`: Prediction metrics of nn-Meter (section 7.1): RMSE, RMSPE, +-5 % and +-10 % accuracy,
  and those of intervals.
* `page`: A page is a chapter's part of the report: values that say what is shown, not how it is
  laid out.
* `partition_gantt`: A partition plan as a picture: one line for each processor, as text for
  terminals and as SVG.
* `svg`: Figures as SVG: the same bytes every time, text as text, and colours that follow the
  page's.
* `table`: This module writes a table to files and reads its cells back.
* `uncertainty`: Intervals tell how much of a figure, or of a difference between two predictors, is
  chance.
"""
