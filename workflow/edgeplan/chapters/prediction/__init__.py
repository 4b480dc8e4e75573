"""Predicts the latency of a network, kernel by kernel (nn-Meter).

Modules:

* `adapting`: Adapting a device live: `edgeplan device adapt` measures here for seconds, and writes
  predictors that `predict` finds.
* `api`: The interface for programs of the chapter on prediction: `edgeplan.predict` and
  `edgeplan.measure`.
* `chapter`: The chapter on prediction: what it measures, learns and shows.
* `comparison`: A model measured on this machine, beside what was predicted for it: whole, and
  kernel by kernel.
* `distil`: The package ships of a device: file, fusion rules, distilled predictors, the kernels
  behind them, costs of preparation.
* `estimate`: The chapter's stages take the budgets of params.yaml, and elsewhere the time of
  earlier runs.
* `evaluation/`: This package evaluates the chapter: evidence, tables, figures, figures of merit and
  findings.
* `fusion/`: Which operators an engine runs as one: found by timing pairs of them.
* `model_prediction`: Predicting a model file's latency on a device with the predictors that were
  trained there.
* `model_tables`: The models of a table as tables of kernels.
* `models`: The models of models.parquet as graphs.
* `paper`: The numbers that nn-Meter (MobiSys 2021) reports, each with its table, figure or section.
* `sampling/`: Which kernels are measured: adaptive sampling, and what it is held against.
* `settings`: The sections of params.yaml that the chapter on prediction reads, with their bounds.
* `speed`: The speed of predictions: the command as a whole process, the call inside one, and the
  paper's 26,000 models at once.
* `stages/`: The stages of the chapter: each reads files, calls the library, and writes files.
* `training_part`: One training in a process of its own: `python -m
  edgeplan.chapters.prediction.training_part FOLDER`.
* `whole_models`: Measuring whole models, plain and unprofiled: those that are evaluated and those
  that calibrate the intervals.
"""
