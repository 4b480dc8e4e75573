"""Writes the report of a device: the pages that the chapters' tables and figures are shown in.

Modules:

* `pages`: Renders the report's page: chapters, laid out by templates that know none of them by
  name.
* `stage`: Stage `report`: write one page of all devices and pairs, and the figures of merit of each
  in one file.
"""
