"""What tables, figures and reports of all chapters are made with.

Modules:

* `bars`: What figures of merit are held against.
* `captions`: Captions: a text beside the chapter, read when a report is written and by no stage
  that makes a table or draws a figure.
* `chapter_report`: A chapter's report is one value: it says what is read of a target, what is made
  of it, written, and handed over as a page.
* `drawing`: What all figures share: size, fonts, and colours that colour-blind readers can tell
  apart.
* `environment`: A captured environment as a report shows it.
* `estimates`: Figures of merit of a chapter: functions of its evidence, each with what chance
  leaves open of it.
* `gantt`: A timeline as a picture: the planned and the measured cold start side by side.
* `grade`: A grade says how far a chapter's figures can be trusted: good, fair or poor.
* `kit`: How every chapter declares its tables and figures, and how they are made, written and
  handed over to its page.
* `metrics`: Prediction metrics of nn-Meter (section 7.1): RMSE, RMSPE, +-5 % and +-10 % accuracy,
  and those of intervals.
* `page`: What a chapter hands over to the report: values that say what is shown, not how it is laid
  out.
* `partition_gantt`: A partition plan as a picture: one line for each processor, as text for
  terminals and as SVG.
* `svg`: Figures as SVG: the same bytes every time, text as text, and colours that follow the
  page's.
* `table`: How a table is written and read back.
* `uncertainty`: How much of a figure, and of a difference between two predictors, is the chance of
  what was measured.
"""
