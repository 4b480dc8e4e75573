"""Every layer may use these modules: they know nothing of models, devices or chapters.

Modules:

* `cgroups`: The control groups around this process, of either version, and the files in them.
* `compiled`: Functions are compiled for this processor once a user: every checkout, environment and
  wheel finds what another compiled.
* `cpus`: Processors that this process may use, and how much of their time: an affinity, a cpuset, a
  quota of control groups.
* `digests`: SHA-256 of small files without OpenSSL, of which `hashlib` keeps 3.4 MiB in memory;
  large files are for `hashlib`.
* `files`: Reading and writing files that cross a border: atomic writes, validated YAML and JSON.
* `frames`: The tables and documents that one stage hands to the next: atomic writes, and reading
  that checks what is there.
* `lazy`: Heavy libraries are imported when something of them is first asked for.
* `lifeline`: Processes that end with the one that started them, however it ends.
* `machine`: This module identifies the machine and its state: the fingerprint that keys rows, and
  the environment kept with them.
* `machine_code`: Machine code that was compiled before is mapped and called: the process that runs
  it needs no compiler.
* `memory_counters`: Resident memory of this process by kind.
* `object_code`: Functions that numba compiles become images, which `support.machine_code` maps
  without a compiler.
* `protocols`: Names of measuring protocols: what a stored number means, without looking at source
  files.
* `rounding`: Results of linear algebra, to as many digits as are the same everywhere.
* `scratch`: Temporary folders that are gone afterwards, those of processes that were killed
  included.
* `store`: The one store of what was measured or made once: values by key in files, found again for
  ever.
* `subprocesses`: Processes of the package's own modules, and programs; they end with this process,
  however it ends.
* `table_store`: Tables by key hold what is made once beside the measured rows, as plans and checks.
* `tensors`: Tensors that users give and get: .npz and .npy files of inputs, held against what a
  model expects, and .npz files of outputs.
* `termination`: SIGTERM to processes that run others, and the end of what started them: they end,
  and what they run ends before them.
* `topology`: The order in which things that wait for each other can run.
* `workers`: Processes that do one job of this package: a document on stdin, another on stdout, and
  what is said where they fail.
"""
