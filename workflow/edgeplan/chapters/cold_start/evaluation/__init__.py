"""Evidence, tables, figures, figures of merit and findings show the chapter's measurements.

Modules:

* `evidence`: Evidence of the chapter is read from the folder that the measuring stage writes.
* `figures`: The figures of the cold-start chapter.
* `findings`: Sentences of captions and findings that follow from the measurements.
* `metrics`: The figures of the cold-start chapter: pure functions of the measured frames, the
  formula of each in its docstring.
* `page`: The chapter on cold starts: its headline figure and cards, findings, figures and tables.
* `tables`: The registry of the cold-start chapter's tables.
* `tables_bounds`: Tables of what bounds cold starts, in each state of the page cache.
* `tables_continuous`: Continuous inference (section 3.5, Figure 14): the first inferences of a
  process, with the mode for them and without it.
* `tables_plans`: These tables show profiles and plans: kernel alternatives, storage, planning time.
* `tables_runs`: Tables of cold starts as measured: speed-ups, load, energy, ablation, continuous
  inference.
* `tables_stages`: Tables of one start's stages and of the number of cores share some functions with
  those of runs.
"""
