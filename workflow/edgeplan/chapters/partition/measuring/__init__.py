"""These modules measure on a pair: layers in chains, splits, models, handshakes.

Modules:

* `chains`: Layers in chains: many of them, each with weights of its own, run one after the other in
  one session.
* `checked`: Plans that check themselves, measured: how long they take to make, and the ways to run
  a model on fresh runs.
* `curves`: Latency by output channels, for the paper's Figures 2, 3, 5 and 6.
* `models`: Models end to end: our plan, other plans and single processors interleaved, oneDNN and
  stock engines on all cores.
* `opened`: The two processors of a pair, opened.
* `rows`: Rows of a pair that are stored: by what was measured, found again by their keys.
* `running`: One inference after the other of sessions that are opened together: all of them meet
  the same minutes.
* `samples`: Samples to learn from: layers and other steps, each on both processors alone, in chains
  (LiPG, section 5.2).
* `splits`: Layers split in every way: a grid search, and what was chosen run again in new sessions
  (LiPG, sections 5.3 and 5.5).
* `tuning`: Autotuning is compared with the white-box dispatcher: every kernel it could have chosen
  is timed in turn with its own.
"""
