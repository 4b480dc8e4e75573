"""Runs the stages of the chapter: each reads files, calls the library, and writes files.

Modules:

* `calibration`: Stage `calibration`: measure whole models of a seed of their own, on which
  predictions and intervals are calibrated.
* `evaluation`: Stage `evaluation`: compare predictions with measured whole models, in tables,
  figures and metrics.
* `fusion`: Stage `fusion`: detect what a device's engine fuses by timing alone, and verify it by
  the engine's own report.
* `sampling`: Stage `sampling`: measure and label kernels by the adaptive sampler, its baselines,
  the frozen set and both modes.
* `training`: Stage `training`: train the predictors of a device, and those they are compared with.
* `transfer`: Stage `transfer` (Table 11): try predictors of one device on another, beside the
  rebuilt ones.
* `truth`: Stage `truth`: measure whole models, plain and unprofiled, normalised by the references
  that normalise the labels.
* `unseen`: Stage `unseen`: measure and predict architectures outside the zoo's families (see
  `edgeplan.zoo.unseen`).
* `zoo`: Stage `zoo`: draw base models, variants, and the prior distribution.
"""
