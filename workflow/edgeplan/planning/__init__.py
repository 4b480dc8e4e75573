"""Planners are pure functions from a profile and a budget to a plan; they know no engine, no device and no runtime.

Modules:

* `bounds`: Bounds a cold start from below, and counts what a choice of candidates reads and stores.
* `document`: Stores a plan as a document: which candidate, where and when, for every step; small,
  since a cold start reads it.
* `dominance`: Finds the candidates that can be in a plan: those that no other one beats, and those
  that a planner may take.
* `events`: Runs a schedule event by event: what a core does next, on the machine model as in the
  executor.
* `joint/`: Planning of a first inference as a whole: kernels are made, weights read and steps
  executed within one budget of memory.
* `layout/`: Static memory planning gives addresses to buffers whose lifetimes are known.
* `local_search`: Finds cheap schedules and cheap bounds around the mixed-integer program of the
  optimal planner.
* `machine`: Models the machine: what a schedule of one kernel combination costs, and when
  everything runs (NNV12, section 3.2).
* `memory/`: Weights are streamed through a budget of memory: plans say what is loaded where and
  when.
* `mixed_integer`: Builds and solves the mixed-integer program of the optimal planner, for one step
  from which execution widens, by HiGHS.
* `optimal`: Plans optimally: kernels, sources, places and widening together, with a proven lower
  bound.
* `outcome`: This module holds the outcome of a planner, and writes it down as a plan.
* `partition/`: Plans of partitions say which of two processors runs each step of a model, whole or
  split between both.
* `profile`: Describes the profile a cold start is planned from: what each candidate of each step
  costs (NNV12, section 3.2; ms).
"""
