"""Tables, figures and figures of merit of the chapter on partitions.

Modules:

* `checked_page`: Plans that check themselves: what was measured of them, the figures of merit, the
  table and the page of a pair.
* `evidence`: This module holds what the chapter on partitions measured, and the parts of it.
* `figures`: The figures of the chapter on partitions, after the paper's 2, 3, 5, 6 and 7.
* `metrics`: The figures of merit of the chapter on partitions: functions of the measured rows, the
  formula of each in its docstring.
* `page`: The chapter on partitions: its headline figure and cards, findings, figures and tables.
* `tables`: The tables of the chapter on partitions, each beside the paper's values.
"""
