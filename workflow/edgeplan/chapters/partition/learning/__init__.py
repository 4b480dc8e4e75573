"""Predictors of latency are learnt from sampled layers, and compared with simpler ones.

Modules:

* `boosted`: Training gradient-boosted trees, tuned as in LiPG's section 5.2.
* `features`: Features of layers: their shapes, and what the dispatcher of a processor tells.
* `others`: Steps that are neither linear layers nor convolutions: their time follows from what they
  move and how often they touch it.
* `plain`: Two simpler predictors stand beside boosted trees in the paper's Figure 3: a linear
  regression, and a small network.
* `predictors`: The predictors of a pair: one for each implementation of a kind on each processor,
  in a folder with a card.
* `training`: Training the predictors of a pair from sampled layers, and their errors on held-out
  ones (LiPG, section 5.2).
"""
