"""Profiling finds the cost of each candidate of each step: measured on the runtime that executes plans, or predicted.

Modules:

* `check`: A profile is checked stage by stage: a plan's prediction beside cold starts of it in
  fresh processes.
* `contention`: Measures by how much two preparations on two cores slow each other down.
* `disk`: Measures the disk that weights come from when the page cache is evicted: bandwidth and
  latency.
* `first_call_costs`: Measures what a kernel pays at its first execution in a process for tables
  that the library generates then.
* `forms`: Refuses forms of operators that the runtime would compute otherwise than ONNX says,
  before anything is measured.
* `frame`: Writes profiles as tables: one row a step, candidate and source; the units are in the
  names of the columns.
* `fresh_process_factors`: Corrects profiled steps for what whole programs cost in a fresh process,
  where every cold start happens.
* `measure`: Measures the candidates of a model in rounds.
* `memory`: Measures memory as a fresh process meets it: page faults that a long-lived process would
  not pay again.
* `predicted`: Makes profiles without measuring the model: execution from the predictors,
  preparation from steps of other models.
* `preparation_costs`: Fits costs of preparing a step that nobody has profiled, by kind of kernel,
  over profiled steps of other models.
* `profiler`: Profiles a model: what the row store lacks is measured, the rest is read.
* `profiles`: Turns rows into profiles: the costs that the planners see.
* `reprofile`: Re-profiles while planning (NNV12, Algorithm 1, line 5): what a combination chooses
  is measured again.
* `rounds`: Runs one round: some steps of a model are started cold with one candidate each, every
  stage timed.
* `samples`: Writes every candidate of every step as rows of one linked program, which the executor
  interprets for the profiler.
* `settings`: These settings say how profiles are measured, and on which cores.
* `starter`: Starts calibrating plans in fresh processes, by turns, those that were disturbed again
  while there is time.
* `store`: Stores the rows of profiles: what was measured of a candidate, once for ever, for every
  model that has such a step.
* `streaming`: Profiles streamed steps: time of each with its weights in memory, bandwidth of
  reading them, memory beside the arena.
* `subjects`: Subjects of a profile are the steps of a model under one home layout, equal ones
  together, with their candidates.
* `target`: Identifies the target of a plan: the model's contents, the library, the machine.
"""
