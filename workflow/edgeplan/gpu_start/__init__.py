"""Cold starts on a GPU (NNV12, section 3.4): kernels are loaded or compiled, weights packed and uploaded, while others run.

Modules:

* `build`: Writes the plan folder of a cold start on a GPU: program, packed weights that are kept,
  machine code of kernels.
* `code_cache`: Keeps machine code of kernels in one file, by what it was compiled from and for;
  what is stale or damaged is not there.
* `model`: Describes a model as a GPU can execute it: its program, and for each step the kernels
  that can run it.
* `opened`: Opens the processor that a plan of a cold start on a GPU names, and then the plan: both
  are timed apart.
* `session`: Runs a plan of a cold start on a GPU: threads prepare steps in the planned order while
  the GPU runs those that are ready.
* `weights`: Reads the weights of a step: packed ones of the plan folder, or the model's, which are
  then packed for its kernels.
"""
