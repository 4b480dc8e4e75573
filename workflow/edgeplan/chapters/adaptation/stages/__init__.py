"""The stages of the chapter.

Modules:

* `ladder`: Stage `ladder`: how well models of a new device are predicted after so many seconds of
  measuring, from kept rows.
* `rows`: Stage `adaptation_rows`: what the ladder needs of a device of this workspace, in one
  folder.
"""
