"""Runs the stages of the chapter on adaptation.

Modules:

* `ladder`: Stage `ladder`: predict a new device from so many seconds of measuring, cut out of kept
  rows.
* `rows`: Stage `adaptation_rows`: gather the rows of a device of this workspace in one folder for
  the ladder.
"""
