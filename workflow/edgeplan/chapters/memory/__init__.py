"""The chapter on memory: a model in a fraction of the memory that its weights take (FlexNN, MobiCom 2024).

Modules:

* `api`: The interface for programs of the chapter on memory: `edgeplan.plan_memory`.
* `bench`: A model on the bench: its file, planner and plans are made when a part first asks for
  them, and kept for the next parts.
* `budget`: Budgets of memory as users write them: bytes, MB, MiB, or per cent of what ONNX Runtime
  takes.
* `chapter`: The chapter on memory: what it measures and shows.
* `contained`: Plans in containers: a limit of memory holds `edgeplan run` from the start of its
  process on; and latency held beside free.
* `costed`: A program with what it takes, and the cut of the model that it came from.
* `evaluation/`: Tables, figures and figures of merit of the chapter on memory.
* `first`: The first inference of a plan of memory: kernels are made and weights read while its
  steps run, within the same budget.
* `frugal`: Settings that people would pick for little memory are run free and held to limits,
  beside plans for the same limits.
* `halved`: The study of weights in half their bytes: plans of one model with them and with whole
  ones, run in turns.
* `layouts`: Layouts of activations and scratch without weights: how near each way to lay out comes
  to the proven least.
* `measuring`: Rows of a model are measured part by part: stock engines, plans for budgets, the
  least peak, and what stands beside them.
* `paper`: These numbers are those that FlexNN (MobiCom 2024) prints.
* `phonelike`: A plan at its least memory where a phone would differ: a processor that is slower, or
  whose other core is busy.
* `pictures`: A plan as pictures: latency against budget with the bound, and what memory holds, step
  by step.
* `plan`: From a model and a budget of memory to a plan folder: cut, profile, plan, and run once to
  see that the budget holds.
* `proof`: A plan proven from outside: a memory cgroup holds its run to the budget, and pays for all
  that the process has in memory.
* `protocols`: Names of the chapter's measuring protocols: see `edgeplan.support.protocols`.
* `same_memory`: Our plans in as much memory as others take: engines that keep all weights, and
  whole layers loaded when they are needed.
* `settings`: The `memory` section of params.yaml.
* `single_layers`: Kernels and cuts of one layer: what trades memory for time within it (the paper's
  Figures 2 and 11).
* `stages/`: The stages of the chapter on memory.
* `studies`: Studies of one model beside its budgets: layers, ways to cut it, what makes plans fast,
  a session that adapts, planning.
* `turns`: A plan and the same program with all weights in memory, in turns within one session: what
  is near in time is compared.
"""
