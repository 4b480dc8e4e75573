"""The chapter on first inferences within a budget: kernels, weights and memory planned as one, from process start on.

Modules:

* `chapter`: The chapter on first inferences within a budget: what it measures and shows.
* `estimate`: This module estimates how long the stage of the chapter takes.
* `evaluation/`: Makes figures of merit, tables and the page from what the chapter measured.
* `pairs`: Two models that run in turns within one budget: as one program, and in two processes with
  shares of the budget.
* `protocols`: Names of the chapter's measuring protocols: see `edgeplan.support.protocols`.
* `settings`: The `joint` section of params.yaml.
* `stages/`: Holds the stage of the chapter that measures.
* `ways`: Ways to start a model within a budget: plans by the commands of users, and engines with
  mapped weights, all in turns.
"""
