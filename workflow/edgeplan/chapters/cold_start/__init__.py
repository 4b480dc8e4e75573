"""Starts a network cold: kernels, weights and cores for each step, so that the first inference ends soonest (NNV12).

Modules:

* `api`: Offers the chapter on cold starts to programs: `edgeplan.plan_cold_start`.
* `chapter`: Declares the chapter on cold starts: what it measures, plans and shows.
* `estimate`: Estimates how long the stages of the chapter take.
* `evaluation/`: Shows the chapter's measurements: evidence, tables, figures, figures of merit and
  findings.
* `gpu/`: Cold starts on a GPU (NNV12, section 3.4): what each step costs there, the plan, and
  starts in fresh processes.
* `measuring/`: Plans and stock engines are started cold in processes of their own, and measured.
* `paper`: Holds the numbers NNV12 (MobiSys 2023) reports, each with its table, figure or section;
  Table 4 is in the zoo.
* `plan`: Plans from a model file: profile or predict, then plan.
* `planners/`: Plans cold starts by pure functions from a profile to a schedule, which know no
  device.
* `protocols`: Names the chapter's measuring protocols: see `edgeplan.support.protocols`.
* `settings`: Declares the `cold_start` section of params.yaml.
* `stages/`: Runs the stages of the chapter: each reads files, calls the library, and writes files.
"""
