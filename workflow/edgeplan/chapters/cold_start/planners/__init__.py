"""Plans cold starts by pure functions from a profile to a schedule, which know no device.

Modules:

* `descent`: Prices schedules whose weights are on the disk, and improves them by single changes:
  thousands a second, so compiled.
* `gpu`: Plans the cold start of a GPU: the GPU executes alone, threads of the host prepare (NNV12,
  section 3.4).
* `later`: Chooses kernels for later runs: those that are fastest once they have run, whatever
  preparation takes (NNV12, 3.5).
* `nnv12`: Plans by NNV12's heuristic kernel scheduler (Algorithm 1); line numbers in comments are
  the paper's.
* `registry`: Runs any planner of a cold start: each home layout is planned, the best plan is kept.
* `streamed`: Plans cold starts with the page cache evicted: weights stream from the disk
  (`streams`) while kernels are made.
* `streamed_program`: Builds the mixed-integer program of `mixed_integer` with a disk, for one step
  from which execution widens.
* `streams`: Models the machine with a disk: cold starts with the page cache evicted.
"""
