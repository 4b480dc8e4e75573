"""What the chapter measures: plans and stock engines, started cold in processes of their own.

Modules:

* `artefacts`: What settings load, built once and kept: a store of artefacts keyed by everything
  that decides them.
* `bench`: The measured runs of the chapter: stock engines and plans interleaved, plans for uneven
  cores, background load.
* `checks`: Outputs of the runtime against ONNX Runtime's, under every kernel choice that a plan can
  make.
* `energy`: Joules of cold starts, where the machine counts them (Figure 12).
* `planning`: The plans of the chapter, made and built: a plan of each model first, then further
  ones while there is time.
* `results`: The journal's records as tables, and what the tables of the chapter ask of them.
* `runs`: Cold runs of models x settings x threads x states x repeats: interleaved, journalled,
  resumable.
* `slowness`: How slow the machine was around each cold start of a table.
* `timeline`: The measured timeline of a plan, from a fresh process.
* `tools`: Where the chapter meets the profiler and the executor: each call in one place, imported
  when it is made.
* `variants`: The plans of the chapter: which are made, and how a plan document relates to the
  profile it was made from.
"""
