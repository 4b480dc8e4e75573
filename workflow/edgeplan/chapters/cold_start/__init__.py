"""Starts a network cold: kernels, weights and cores for each step, so that the first inference ends soonest (NNV12).

Modules:

* `api`: The interface for programs of the chapter on cold starts: `edgeplan.plan_cold_start`.
* `chapter`: The chapter on cold starts: what it measures, plans and shows.
* `estimate`: Tell how long the stages of the chapter take.
* `evaluation/`: Evidence, tables, figures, figures of merit and findings show the chapter's
  measurements.
* `measuring/`: Plans and stock engines are started cold in processes of their own, and measured.
* `paper`: The numbers NNV12 (MobiSys 2023) reports, each with its table, figure or section; Table 4
  is beside the models of the zoo.
* `plan`: From a model file to a plan: profile or predict, then plan.
* `planners/`: The planners of the chapter: pure functions from a profile to a schedule; they know
  no device.
* `protocols`: Names of the chapter's measuring protocols: see `edgeplan.support.protocols`.
* `settings`: The `cold_start` section of params.yaml.
* `stages/`: The stages of the chapter: each reads files, calls the library, and writes files.
"""
