"""The stages of the chapter.

Modules:

* `ladder`: Stage `ladder`: predictions of a new device from so many seconds of measuring, cut out
  of kept rows.
* `rows`: Stage `adaptation_rows`: rows of a device of this workspace, gathered in one folder for
  the ladder.
"""
