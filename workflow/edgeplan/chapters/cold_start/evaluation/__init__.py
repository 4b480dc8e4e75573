"""What the chapter shows: evidence, tables, figures, figures of merit and findings.

Modules:

* `evidence`: What the tables of the cold-start chapter are made of, and reading it from the folder
  the measuring stage writes.
* `figures`: The figures of the cold-start chapter.
* `findings`: Sentences of captions and findings that follow from the measurements.
* `metrics`: The figures of the cold-start chapter: pure functions of the measured frames, the
  formula of each in its docstring.
* `metrics_plans`: Figures of plans as made, and of outputs: what needs no medians of runs.
* `page`: The chapter on cold starts: its headline figure and cards, findings, figures and tables.
* `tables`: The registry of the cold-start chapter's tables.
* `tables_bounds`: Tables of what bounds cold starts, in each state of the page cache.
* `tables_continuous`: Continuous inference (section 3.5, Figure 14): the first inferences of a
  process, with the mode for them and without it.
* `tables_plans`: Tables of profiles and plans: kernel alternatives, storage, planners against each
  other.
* `tables_predictions`: The table of plans from predicted costs: what planning from them loses.
* `tables_runs`: Tables of cold starts as measured: speed-ups, load, energy, ablation, continuous
  inference.
* `tables_stages`: What the tables of cold-start runs share, and those of one start's stages and of
  the number of cores.
"""
