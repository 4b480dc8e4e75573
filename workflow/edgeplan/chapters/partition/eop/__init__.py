"""EOP (VEE 2022): operators sampled, fitted, tuned and run on a pair.

Modules:

* `bounds`: Bounds say how far our plans of measured costs may be from the best ones: planned anew
  from stored sweeps, with no device.
* `contention`: This module measures by how much two different steps slow each other down, by what
  they are bound by.
* `costs`: Sweeps to cost documents: every option of a step with the times it took in its model.
* `evidence`: This module holds what the stage `partition_eop` measured, and the parts of it.
* `figures`: The figures of EOP, after the paper's 4, 7, 8 and 9.
* `metrics`: EOP's figures of merit: functions of the measured rows, the formula of each in its
  docstring.
* `operators`: Operators as EOP names them: what a step is in its tables, and graphs of each alone
  at different sizes (table 2).
* `page`: EOP's part of the report: cards, findings, figures and tables.
* `paper`: This module holds what EOP (VEE 2022) prints.
* `settings`: The section `partition.eop` of params.yaml.
* `sweeps`: Steps of a model measured where they run: whole on each processor, and split over every
  dimension at every share.
* `tables`: EOP's tables, and those behind its figures, each beside the paper's values and what
  whole inferences took.
* `variants`: The models of figures 9 and 10: EOP's recurrent layers and BERT with one setting
  changed at a time.
* `ways`: Ways to run a model that tables compare: both processors alone, EOP's baselines, its
  algorithms, and our planner.
"""
