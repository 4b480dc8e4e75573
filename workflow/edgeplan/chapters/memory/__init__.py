"""The chapter on memory: a model in a fraction of the memory that its weights take (FlexNN, MobiCom 2024).

Modules:

* `api`: The interface for programs of the chapter on memory: `edgeplan.plan_memory`.
* `budget`: Budgets of memory as users write them: bytes, MB, MiB, or per cent of what ONNX Runtime
  takes.
* `chapter`: The chapter on memory: what it measures and shows.
* `contained`: Plans in containers: a limit of memory holds `edgeplan run` from the start of its
  process on; and latency held beside free.
* `evaluation/`: Tables, figures and figures of merit of the chapter on memory.
* `layouts`: Layouts of activations and scratch without weights: how near each way to lay out comes
  to the proven least.
* `measuring`: Rows of one model are measured: stock engines, plans for budgets, the least peak, and
  the same held to a limit.
* `paper`: These numbers are those that FlexNN (MobiCom 2024) prints.
* `pictures`: A plan as pictures: latency against budget with the bound, and what memory holds, step
  by step.
* `plan`: From a model and a budget of memory to a plan folder: cut, profile, plan, and run once to
  see that the budget holds.
* `proof`: A plan proven from outside: a memory cgroup holds its run to the budget, and pays for all
  that the process has in memory.
* `protocols`: Names of the chapter's measuring protocols: see `edgeplan.support.protocols`.
* `settings`: The `memory` section of params.yaml.
* `stages/`: The stages of the chapter on memory.
* `studies`: Studies of one model beside its budgets: layers, ways to cut it, what makes plans fast,
  a session that adapts, planning.
"""
