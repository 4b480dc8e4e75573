"""Decides which kernels are measured: adaptive sampling, and what it is held against.

Modules:

* `adaptive`: Samples adaptively (Algorithm 2), with its baselines, in carriers, each within a
  budget of measuring time.
* `carriers`: Builds carriers: small networks in which sampled kernels are measured where they will
  run, between other kernels.
* `carriers_detection_text`: Builds carriers of kinds that no family of Table 2 has: resizing
  (detectors' necks) and LSTMs (text recognisers).
* `carriers_large_grouped`: Builds carriers of convolutions beyond those of the prior's walks:
  large, grouped and dilated ones.
* `carriers_wider`: Builds carriers of shapes that files from elsewhere hold and no walk of the
  prior draws.
* `committee`: Chooses the proposed carriers that a round measures: those whose convolutions a
  committee of models disagrees on most.
* `isolated`: Measures a kernel as the paper does: alone, as a black box, with the cost of its
  boundary removed.
* `labels`: Turns measured carriers into labelled kernels.
* `prior`: Holds the prior over convolutions (section 5.2): what published models use, spread as the
  variants spread it.
* `rows`: Reads labelled convolutions of carriers as the models that steer the sampling see them.
* `settings`: Declares the `sampling` section of params.yaml.
* `singles`: Draws models of a single operator, for kinds that no carrier shows: the bandwidth-bound
  family, norms, products.
* `sources`: Draws the convolutions of carriers: from the prior, uniformly, or near configurations
  that are predicted badly.
* `sweeps`: Builds fixed convolutions that show how latency follows one dimension (Figures 7, 8) and
  what fusion behind Conv costs.
"""
