"""Runs the stages of the chapter: each reads files, calls the library, and writes files.

Modules:

* `calibration`: Stage `calibration`: whole models of a seed of their own, on which predictions and
  their intervals are calibrated.
* `evaluation`: Stage `evaluation`: predictions held against whole models; tables, figures and
  metrics.
* `fusion`: Stage `fusion`: rules of what a device's engine fuses, found by timing alone, and held
  against the engine's own report.
* `sampling`: Stage `sampling`: measured and labelled kernels, by the adaptive sampler, its
  baselines, the frozen set and both modes.
* `training`: Stage `training`: the predictors of a device, and those it is compared with.
* `transfer`: Stage `transfer` (Table 11): predictors of one device tried on another, beside the
  rebuilt ones.
* `truth`: Stage `truth`: whole models, plain and unprofiled, normalised by the references that
  normalise the labels.
* `unseen`: Stage `unseen`: architectures outside the zoo's families, measured and predicted (see
  `edgeplan.zoo.unseen`).
* `zoo`: Stage `zoo`: base models, variants, and the prior distribution.
"""
