"""Profiling finds the cost of each candidate of each step: measured on the runtime that executes plans, or predicted.

Modules:

* `check`: A profile is checked stage by stage: a plan's prediction beside cold starts of it in
  fresh processes.
* `contention`: Two preparations slow each other down on two cores; this module measures by how
  much.
* `disk`: The disk that weights come from when the page cache is evicted: bandwidth and latency,
  measured.
* `first_call_costs`: A kernel pays at its first execution in a process for tables that the library
  generates when they are first needed.
* `forms`: Forms of operators that the runtime would compute otherwise than ONNX says, refused
  before anything is measured.
* `frame`: Profiles as tables: one row a step, candidate and source; the units are in the names of
  the columns.
* `fresh_process_factors`: A whole program costs more in a fresh process, where every cold start
  happens, than its profiled steps say.
* `measure`: Measuring the candidates of a model in rounds, by the rules of measuring (design,
  section 3).
* `memory`: Memory as a fresh process meets it: page faults that a long-lived process would not pay
  again.
* `predicted`: Profiles without measuring the model: execution from the predictors, preparation from
  steps of other models.
* `preparation_costs`: Costs of preparing a step that nobody has profiled: fitted over the profiled
  steps of other models, by kind of kernel.
* `profiler`: Profiling a model: what the row store lacks is measured, the rest is read.
* `profiles`: Rows to profiles: the costs that the planners see.
* `reprofile`: NNV12's re-profiling while planning (Algorithm 1, line 5): what a combination chooses
  is measured again.
* `rounds`: One round: some steps of a model are started cold with one candidate each, every stage
  timed.
* `samples`: Every candidate of every step as rows of one linked program: what the executor
  interprets, for the profiler to time.
* `settings`: These settings say how profiles are measured, and on which cores.
* `starter`: Starting calibrating plans in fresh processes, by turns, those that were disturbed
  again while there is time.
* `store`: The row store of profiles: what was measured of a candidate, once for ever, for every
  model that has such a step.
* `streaming`: Streamed steps are profiled: time of each with its weights in memory, bandwidth of
  reading them, memory beside the arena.
* `subjects`: Subjects of a profile are the steps of a model under one home layout, equal ones
  together, with their candidates.
* `target`: This module identifies the target of a plan: the model's contents, the library, the
  machine.
"""
