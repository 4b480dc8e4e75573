"""Decides which kernels are measured: adaptive sampling, and what it is held against.

Modules:

* `adaptive`: Adaptive data sampling (Algorithm 2) and its baselines, in carriers, each within a
  budget of measuring time.
* `carriers`: Carriers: small networks in which sampled kernels are measured where they will run,
  between other kernels.
* `carriers_detection_text`: Carriers of kinds that no family of Table 2 has: resizing and LSTMs, of
  detectors' necks and of recognisers of text.
* `carriers_large_grouped`: Carriers of convolutions beyond those of the prior's walks: large,
  grouped and dilated ones.
* `committee`: Which proposed carriers a round measures: those on whose convolutions a committee of
  models disagrees most.
* `isolated`: The paper's way to measure a kernel: alone, as a black box, with the cost of its
  boundary removed.
* `labels`: From measured carriers to labelled kernels.
* `prior`: The prior over convolutions (section 5.2): what published models use, spread as the
  variants spread it.
* `rows`: Labelled convolutions of carriers, as the models that steer the sampling see them.
* `settings`: The `sampling` section of params.yaml.
* `singles`: Models of a single operator, for kinds that no carrier shows: the bandwidth-bound
  family, norms, products of activations.
* `sources`: Where the convolutions of carriers come from: the prior, uniform draws, or the
  neighbourhood of hard configurations.
* `sweeps`: Fixed convolutions: how latency follows one dimension (Figures 7 and 8), and whether
  Conv costs what Conv++bn++relu does.
"""
