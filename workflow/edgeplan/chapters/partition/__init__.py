"""The chapter on partitions: one model on two processors at once, split where it pays.

Modules:

* `api`: The interface for programs of the chapter on partitions: `edgeplan.plan_partition`.
* `chapter`: The chapter on partitions: what it measures, learns and shows.
* `checked/`: Plans that check themselves: swept, planned and refined where they run, and held
  against the other ways by execution.
* `choosing`: Where a single layer is split: what each way to choose would do (LiPG, section 2).
* `costs`: Models to cost documents: what the predictors of a pair say of every step, whole and
  split.
* `eop/`: EOP (VEE 2022): operators sampled, fitted, tuned and run on a pair.
* `estimate`: This module estimates how long the stages of the chapter take.
* `evaluation/`: Tables, figures and figures of merit of the chapter on partitions.
* `layers`: Single layers: what is sampled to learn from, and what splits are tried on.
* `learning/`: Predictors of latency are learnt from sampled layers, and compared with simpler ones.
* `measuring/`: These modules measure on a pair: layers in chains, splits, models, handshakes.
* `names`: Names in stored rows, and a limit, that what measures, what shows and EOP's part have in
  common.
* `operators`: Models whose operators were measured one by one stand beside LiPG's Table 3: the
  operators' sum, and the model end to end.
* `pair_check`: A pair looked at: how its processors wait for each other, and what that costs.
* `paper`: This module holds what LiPG (EPEW 2025) prints.
* `planned`: A model planned on a pair, and the folder that holds the plan.
* `protocols`: Names of the chapter's measuring protocols: see `edgeplan.support.protocols`.
* `sampling`: Which layers are measured: samples to learn from (LiPG, section 5.2) and layers to
  split (section 5.3).
* `settings`: The `partition` section of params.yaml.
* `shown`: This module lists all tables and figures of the chapter on partitions, of both papers.
* `stages/`: The stages of the chapter on partitions.
"""
