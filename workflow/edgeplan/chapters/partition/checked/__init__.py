"""Plans that check themselves: swept, planned and refined where they run, and held against the other ways by execution.

Modules:

* `fastest`: The fastest of several ways to run a model, by inferences in turn, and how sure that
  is.
* `opened_plan`: A plan that another process holds open: it runs there as `edgeplan run` would run
  it, beside nothing of ours.
* `own_costs`: A model's costs of its own sweep, and those of a model whose steps all run on one
  processor.
* `own_sweep`: A model's own steps measured on the pair where it is to run: whole on each processor,
  then split where both are even.
* `planning`: A plan that checks itself: swept, planned and refined on the pair, then run beside the
  other ways; the fastest is the plan.
* `refining`: A plan refined where it runs: blocks are shifted to the processor that waited at a
  split, and what is faster is kept.
* `shifting`: Where a step is split next: what each processor took tells which of them waited, and
  how far to shift.
* `stock_times`: Stock engines on all cores of a pair, each in a process of its own: what a plan
  would have to beat there.
* `worker`: A plan held open in a process of its own, `python -m
  edgeplan.chapters.partition.checked.worker FOLDER`, and run when asked.
"""
