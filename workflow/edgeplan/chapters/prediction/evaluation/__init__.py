"""Evaluates the chapter: evidence, tables, figures, figures of merit and findings.

Modules:

* `analysis`: Tells where predictions miss and why, as sentences computed from the tables.
* `baselines`: Fits the baselines that know a model by two numbers: FLOPs, and FLOPs with memory
  access cost (sections 7.1 and 7.2.1).
* `dates`: Tells when what a table rests on was measured: a range of dates for each measuring stage.
* `evidence`: Reads the evidence of an evaluation: the tables and documents of one device, each of
  which may be absent.
* `figures`: This registry lists figures; a new one is one function and one line of `FIGURES`.
* `figures_kernels`: Draws figures of kernels: the latency breakdown (Fig. 6) and the sweeps (Fig. 7
  and 8).
* `figures_models`: Draws figures of whole models: baselines (Fig. 9), error by latency (Fig. 10),
  operator sums (Fig. 11).
* `metrics`: Computes the flat figures of merit of predictions, which experiments are compared by,
  and their bars.
* `page`: Builds the chapter's page on predictions: headline figure, cards, figures against bars,
  findings, figures and tables.
* `table_registry`: This registry lists tables; a new one is one function and one line of `TABLES`.
* `tables_baselines`: Tabulates baselines beside our predictions, by family: FLOPs, FLOPs with
  memory, sums of operators, random forests.
* `tables_fusion`: Tabulates fusion: the paper's Tables 3 and 4, and what fusing behind Conv costs.
* `tables_prediction`: Tabulates whole-model prediction: the paper's Tables 1, 2, 8 and 11, the
  ceiling and the intervals.
* `tables_sampling`: Tabulates sampling and the predictors: the paper's Tables 5, 6, 7, 9, 10 and
  12, and measuring modes.
"""
