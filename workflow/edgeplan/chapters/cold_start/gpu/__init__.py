"""Cold starts on a GPU (NNV12, section 3.4): what each step costs there, the plan, and starts in fresh processes.

Modules:

* `costs`: Measures what each candidate of each step costs on a GPU: read, compile, load, pack,
  upload, execute.
* `measuring`: Measures cold starts of a model on a GPU: plans are made, and started in fresh
  processes beside stock engines.
* `page`: Shows cold starts on a GPU: what was measured, the figures of merit, tables, a figure and
  the page of a device.
* `planned`: Plans the cold start of a model on a GPU: measures its costs there, finds a plan with a
  proven bound, writes its folder.
* `settings`: Declares the `cold_gpu` section of params.yaml: cold starts on GPUs.
"""
