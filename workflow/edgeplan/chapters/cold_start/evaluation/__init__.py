"""Shows the chapter's measurements: evidence, tables, figures, figures of merit and findings.

Modules:

* `evidence`: Evidence of the chapter is read from the folder that the measuring stage writes.
* `figures`: Draws the figures of the cold-start chapter.
* `findings`: Writes sentences of captions and findings that follow from the measurements.
* `metrics`: Computes the figures of the cold-start chapter: pure functions of the measured frames,
  each with its formula.
* `page`: Builds the chapter's page on cold starts: its headline figure and cards, findings, figures
  and tables.
* `tables`: Registers the cold-start chapter's tables.
* `tables_bounds`: Tabulates what bounds cold starts, in each state of the page cache.
* `tables_continuous`: Tabulates continuous inference (section 3.5, Figure 14): first inferences of
  a process, with its mode and without.
* `tables_plans`: Tabulates profiles and plans: kernel alternatives, storage, planning time.
* `tables_runs`: Tabulates cold starts as measured: speed-ups, load, energy, ablation, continuous
  inference.
* `tables_stages`: Tabulates one start's stages and cold starts by the number of cores.
"""
