"""Plans of partitions say which of two processors runs each step of a model, whole or split between both.

Modules:

* `baselines`: These baselines are compared with a partition: one processor, one ratio, every
  operator for itself.
* `branches`: Steps of a module side by side, as a constraint program on OR-tools' CP-SAT.
* `costs`: This module holds the costs that a partition is planned from: steps, their options on two
  processors, hand-overs (in ms).
* `document`: The cost document, `costs.json`, which users and predictors hand to the planner.
* `eop`: EOP's planner (VEE 2022), Algorithms 1 to 3 as written; line numbers in comments are the
  paper's.
* `fitted`: Measured costs with the noise of single measurements taken out: times of splits on the
  patterns fitted to them.
* `margin`: Which options a plan may use, and why an operator is not split.
* `modules`: Exact decomposition: a step comparable with every other one cuts the model in time.
* `parallel`: Plans with steps side by side: a shortest path over the cuts, modules solved where it
  matters.
* `patterns`: The patterns by which EOP estimates an operator's time from a share of its input
  (section 3.2).
* `plan`: The partition document, `plan.json`: where each operator runs, when, and why it is not
  split.
* `planner`: One entry to all planners of a partition.
* `quick`: A schedule and a bound of a module without a solver: list scheduling, load, longest path.
* `sequential`: The best plan that runs one step at a time, by dynamic programming over the order of
  the steps.
* `simulate`: This module simulates a plan under its costs: start and end of every step.
"""
