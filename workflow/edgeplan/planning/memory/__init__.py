"""Weights are streamed through a budget of memory: plans say what is loaded where and when.

Modules:

* `algorithm1`: The planner of FlexNN (MobiCom 2024), section 3.3.2, Algorithm 1, as written: the
  baseline.
* `bounds`: This module bounds the latency of every streaming plan from below.
* `document`: The plan document: addresses of tensors and weights, what each load waits for, and the
  proven bound.
* `ladder`: Plans of one program for a ladder of budgets, made beforehand: a change of the budget
  takes the largest that fits.
* `planner`: Plans for a budget, and the proof that there is none.
* `quick`: The best of a few skylines for a budget, its time, and the bound that it is held to.
* `residents`: Which weights to keep in memory for good, where inferences follow each other.
* `search`: A search for the layout of tensors that weights stream around best: random restarts,
  seeded, and small changes of the best.
* `simulate`: The execution model that plans are priced by: when steps and loads begin and end.
* `skyline`: Streaming plans: tensors have their places, then each weight goes where memory is free
  earliest.
* `workload`: A workload is the input of the memory planner: steps in order, the tensors that live
  across them, and their weights.
"""
