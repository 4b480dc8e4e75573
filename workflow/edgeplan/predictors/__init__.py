"""Predictors: features, gradient-boosted trees per kernel kind and implementation, whole-model prediction.

Modules:

* `adapted`: A predictor adapted to a new device: what old devices say, brought there, mixed by kind
  with what was learnt from scratch.
* `adapting`: Adapting: from what was measured on a new device and old devices' predictors to a
  predictor of the new one.
* `bandwidth`: The bandwidth-bound family: element-wise operators, copies and plain reductions,
  which take as long as their bytes do.
* `boosting`: Gradient-boosted latency predictors: a non-negative linear work model, corrected by
  trees on log(latency / work).
* `calibration_line`: A calibration brings what an old device's predictor says of kernels to a new
  device, from few measured kernels.
* `card`: The card of a device's predictors: what they are, what they were trained on, how far to
  trust them (card.json).
* `configs`: Kernel configurations as columns: the form in which many of them are turned into
  features, stored and deduplicated.
* `correction`: This model corrects predictions of prior devices by the rows of a device: a few
  parameters, then a few shallow trees.
* `dispatch`: Learning which implementation an engine picks, and the layouts it reads and writes:
  both depend on the configuration.
* `distilled`: Predictors small enough to be shipped: the trees of a device in one file of a few MB,
  read without LightGBM or pickle.
* `familiarity`: This module tells how far kernels lie from all that was measured, which a predictor
  cannot have learnt.
* `features`: The one feature function of all predictors: kernel configurations in, a matrix of
  finite numbers out.
* `forest`: The random forest of nn-Meter (section 5.3), as the baseline: one a kernel kind, the
  paper's features, raw latency.
* `intervals`: Whole-model intervals, calibrated on held-out subjects (split conformal prediction).
* `kernel_tables`: Kernel tables: what whole-model prediction needs of a model, for one model or for
  tens of thousands.
* `kind_factors`: Factors of kernel kinds: what kernels take in whole models, over what carriers
  said of them.
* `kind_training`: Training the predictors of one kernel kind.
* `labels`: Measured kernels as training data.
* `latency`: Evaluating a device's predictors: which implementation a configuration gets, and what
  it costs.
* `layouts`: Layout propagation: which layout every tensor of a model has, and where the engine has
  to insert conversions.
* `packing`: The packed trees beside the text models (packed.npz): what makes loading a device's
  predictors fast.
* `predictions`: A prediction is of one model with its breakdown, or of many models at once.
* `predictor`: Whole-model prediction: the sum over kernels, layout conversions and the call
  (nn-Meter, section 6).
* `prior`: Knowledge of devices that the package ships, as a prior for a device of which few kernels
  were measured.
* `quality`: Held-out kernels, predicted by models trained anew: by LightGBM and by the paper's
  random forest (Table 9).
* `settings`: The `training` section of params.yaml.
* `sizes`: This module measures how far the sizes of kernels lie from training samples, and widens
  their intervals accordingly.
* `source`: Which predictors answer for a device, and which machine they were measured on.
* `stand_ins`: Kernels of kinds that a device has no predictor for, as kernels of the nearest kind
  that it has one for.
* `strata`: Strata of kernels, kind by quantile of predicted time, from which the samples of a new
  device are drawn at random.
* `support`: A prior's support for one predictor, and how much of it the predictor takes.
* `training`: Training the predictors of a device from labelled kernels (nn-Meter, sections 5.3 and
  6; lipg, section 5.2).
* `training_rows`: Which rows of the training table the predictors of a device learn from: asked by
  the training and by the tables about it.
* `trees`: Tree ensembles from LightGBM's text format, evaluated with numpy alone: importing
  LightGBM takes longer than a prediction.
* `walking`: Ensembles on many rows, compiled: the same sums as `Forest.raw`, bit by bit, in a small
  part of its time.
"""
