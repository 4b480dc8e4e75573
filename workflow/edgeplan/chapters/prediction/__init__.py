"""Predicts the latency of a network, kernel by kernel (nn-Meter).

Modules:

* `adapting`: Adapts predictors to this machine: `edgeplan device adapt` measures for seconds and
  writes predictors that `predict` finds.
* `api`: Offers the chapter on prediction to programs: `edgeplan.predict` and `edgeplan.measure`.
* `chapter`: Declares the chapter on prediction: what it measures, learns and shows.
* `comparison`: Compares a model measured on this machine with what was predicted for it: whole, and
  kernel by kernel.
* `distil`: Writes what the package ships of a device: file, fusion rules, distilled predictors,
  their kernels, costs of preparation.
* `estimate`: Estimates the time of the chapter's stages: the budgets of params.yaml, and elsewhere
  the time of earlier runs.
* `evaluation/`: Evaluates the chapter: evidence, tables, figures, figures of merit and findings.
* `fusion/`: Detects which operators an engine runs as one, by timing pairs of them.
* `model_prediction`: Predicts a model file's latency on a device with the predictors that were
  trained there.
* `model_tables`: Turns the models of a table into tables of kernels.
* `models`: Reads the models of models.parquet as graphs.
* `paper`: Holds the numbers that nn-Meter (MobiSys 2021) reports, each with its table, figure or
  section.
* `sampling/`: Decides which kernels are measured: adaptive sampling, and what it is held against.
* `settings`: Declares the sections of params.yaml that the chapter on prediction reads, with their
  bounds.
* `speed`: Measures the speed of predictions: the command as a process, the call inside one, and the
  paper's 26,000 models at once.
* `stages/`: Runs the stages of the chapter: each reads files, calls the library, and writes files.
* `training_part`: Runs one training in a process of its own: `python -m
  edgeplan.chapters.prediction.training_part FOLDER`.
* `whole_models`: Measures whole models, plain and unprofiled: those that are evaluated and those
  that calibrate the intervals.
"""
