"""Predicts latency by features, gradient-boosted trees for each kernel kind and implementation, and sums over whole models.

Modules:

* `adapted`: Adapts predictors to a new device: old devices' predictions, brought there, are
  averaged by kind with what was learnt anew.
* `adapting`: Makes a predictor of a new device from old devices' predictors and what was measured
  on the new one.
* `bandwidth`: Predicts the bandwidth-bound family: element-wise operators, copies and plain
  reductions, whose time their bytes decide.
* `boosting`: Fits gradient-boosted latency predictors: a non-negative linear work model, corrected
  by trees on log(latency / work).
* `calibration_line`: A calibration brings what an old device's predictor says of kernels to a new
  device, from few measured kernels.
* `card`: Describes a device's predictors by a card: what they are, what they were trained on, how
  far to trust them (card.json).
* `configs`: Keeps kernel configurations as columns, so that many of them can be turned into
  features, stored and deduplicated at once.
* `correction`: Corrects predictions of prior devices by the rows of a device: a few parameters,
  then a few shallow trees.
* `dispatch`: Learns which implementation an engine picks, and the layouts it reads and writes: both
  depend on the configuration.
* `distilled`: Stores predictors small enough to be shipped: the trees of a device in one file of a
  few MB, read without LightGBM or pickle.
* `familiarity`: Tells how far kernels lie from all that was measured, which a predictor cannot have
  learnt.
* `features`: Computes the features of all predictors: kernel configurations in, a matrix of finite
  numbers out.
* `forest`: Trains nn-Meter's random forest (section 5.3) as the baseline: one a kernel kind, the
  paper's features, raw latency.
* `intervals`: Computes whole-model intervals, calibrated on held-out subjects (split conformal
  prediction).
* `kernel_tables`: Builds kernel tables: what whole-model prediction needs of a model, for one model
  or for tens of thousands.
* `kind_factors`: Fits factors of kernel kinds: what kernels take in whole models, over what
  carriers said of them.
* `kind_training`: Trains the predictors of one kernel kind.
* `labels`: Prepares measured kernels as training data.
* `latency`: Evaluates a device's predictors: which implementation a configuration gets, and what it
  costs.
* `launches`: Computes what kernels of the package's own are launched as: features that decide what
  a GPU takes (LiPG, section 3.2).
* `layouts`: Propagates layouts: which layout every tensor of a model has, and where the engine has
  to insert conversions.
* `packing`: Stores the packed trees beside the text models (packed.npz), which makes loading a
  device's predictors fast.
* `predictions`: Holds predictions: of one model with its breakdown, or of many models at once.
* `predictor`: Predicts whole models: the sum over kernels, layout conversions and the call
  (nn-Meter, section 6).
* `prior`: Takes the predictors of shipped devices as a prior for a device of which few kernels were
  measured.
* `quality`: Judges predictors on held-out kernels: LightGBM and the paper's random forest, both
  trained anew (Table 9).
* `said`: Holds what an old device's predictor says of models' kernels, in the form that a
  calibration brings to a new device.
* `settings`: Declares the `training` section of params.yaml.
* `sizes`: Measures how far the sizes of kernels lie from training samples, and widens their
  intervals accordingly.
* `source`: Finds the predictors that answer for a device, and the machine that they were measured
  on.
* `stand_ins`: Predicts kernels of kinds that a device has no predictor for as kernels of the
  nearest kind that it has one for.
* `strata`: Divides kernels into strata, kind by quantile of predicted time, from which a new
  device's samples are drawn.
* `support`: Decides how much of a prior's kernels supports the training of one predictor.
* `training`: Trains the predictors of a device from labelled kernels (nn-Meter, sections 5.3 and 6;
  LiPG, section 5.2).
* `training_rows`: Selects the rows of the training table that the predictors of a device learn
  from, for training and for tables.
* `trees`: Evaluates tree ensembles of LightGBM's text format by numpy alone: importing LightGBM
  takes longer than a prediction.
* `walking`: Evaluates ensembles on many rows by compiled code: the same sums as `Forest.raw`, bit
  by bit, in a small part of its time.
"""
