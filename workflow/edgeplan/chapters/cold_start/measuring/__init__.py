"""Plans and stock engines are started cold in processes of their own, and measured.

Modules:

* `artefacts`: A store keeps the artefacts that settings load, keyed by everything that decides
  them.
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
* `slowness`: The slowness of the machine is estimated around each cold start of a table.
* `tools`: Tools of the chapter call the profiler and the executor, each in one place.
* `variants`: The plans of the chapter: which are made, and how a plan document relates to the
  profile it was made from.
"""
