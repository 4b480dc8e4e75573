"""Plans and stock engines are started cold in processes of their own, and measured.

Modules:

* `artefacts`: A store keeps the artefacts that settings load, keyed by everything that decides
  them.
* `bench`: Measures the runs of the chapter: stock engines and plans interleaved, plans for uneven
  cores, background load.
* `checks`: Checks outputs of the runtime against ONNX Runtime's, under every kernel choice that a
  plan can make.
* `energy`: Measures joules of cold starts, where the machine counts them (Figure 12).
* `planning`: Makes and builds the plans of the chapter: a plan of each model first, then further
  ones while there is time.
* `results`: Turns the journal's records into tables, and computes what the chapter's tables ask of
  them.
* `runs`: Measures cold runs of models x settings x threads x states x repeats: interleaved,
  journalled, resumable.
* `slowness`: Estimates how slow the machine was around each cold start of a table.
* `tools`: Calls the profiler and the executor for the chapter, each in one place.
* `variants`: Lists the plans of the chapter: which are made, and how a plan document relates to its
  profile.
"""
