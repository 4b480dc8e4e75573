"""The planners of the chapter: pure functions from a profile to a schedule; they know no device.

Modules:

* `descent`: Pricing schedules whose weights are on the disk, and improving them by single changes:
  thousands a second, so compiled.
* `later`: Kernels for later runs: those that are fastest once they have run, whatever their
  preparation takes (NNV12 section 3.5).
* `nnv12`: NNV12's heuristic kernel scheduler (Algorithm 1); line numbers in comments are the
  paper's.
* `registry`: One entry to all planners of a cold start: each home layout is planned, the best plan
  is kept.
* `streamed`: Planning cold starts with the page cache evicted: weights stream from the disk
  (`streams`) while kernels are made.
* `streamed_program`: The mixed-integer program of `mixed_integer` with a disk, for one step from
  which execution widens.
* `streams`: The machine model with a disk: cold starts with the page cache evicted.
"""
