"""Planners are pure functions from a profile and a budget to a plan; they know no engine, no device and no runtime.

Modules:

* `bounds`: Figures to hold a cold start against, and what a choice of candidates stores.
* `document`: The plan document: which candidate, where and when, for every step; small, since a
  cold start pays for reading it.
* `dominance`: Which candidates can be in a plan: those that no other one beats, and those that a
  planner may take.
* `events`: Running a schedule, event by event: what a core does next, on the machine model as in
  the executor.
* `layout/`: Static memory planning gives addresses to buffers whose lifetimes are known.
* `local_search`: Cheap schedules and cheap bounds around the mixed-integer program of the optimal
  planner.
* `machine`: The machine model: what a schedule of one kernel combination costs, and when everything
  runs (NNV12 section 3.2).
* `memory/`: Weights are streamed through a budget of memory: plans say what is loaded where and
  when.
* `mixed_integer`: The mixed-integer program of the optimal planner, for one step from which
  execution widens, on HiGHS through scipy.
* `optimal`: The optimal planner: kernels, sources, places and widening together, with a proven
  lower bound.
* `outcome`: This module holds the outcome of a planner, and writes it down as a plan.
* `partition/`: Plans of partitions say which of two processors runs each step of a model, whole or
  split between both.
* `profile`: The profile a cold start is planned from: what each candidate of each step costs (NNV12
  section 3.2; times in ms).
"""
