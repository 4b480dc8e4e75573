"""Every layer may use these modules: they know nothing of models, devices or chapters.

Modules:

* `answers`: A process that answers on its standard output keeps it from its libraries, which print
  as they please.
* `cgroups`: Finds the control groups around this process, of either version, and the files in them.
* `compiled`: Functions are compiled for this processor once a user: every checkout, environment and
  wheel finds what another compiled.
* `cpus`: Tells the processors that this process may use, and how much of their time: affinity,
  cpuset, control groups' quota.
* `digests`: Digests of SHA-256 are made without OpenSSL, which takes 3.4 MiB of memory, unless
  something else has loaded it.
* `files`: Reads and writes files that cross a border: atomic writes, validated YAML and JSON.
* `frames`: Reads and writes the tables and documents that one stage hands to the next: atomically,
  and checked.
* `lazy`: Heavy libraries are imported when something of them is first asked for.
* `lifeline`: Ends processes with the one that started them, however it ends.
* `machine`: This module identifies the machine and its state: the fingerprint that keys rows, and
  the environment kept with them.
* `machine_code`: Maps and calls machine code that was compiled before: the process that runs it
  needs no compiler.
* `memory_counters`: Reads the resident memory of this process by kind.
* `object_code`: Functions that numba compiles become images, which `support.machine_code` maps
  without a compiler.
* `protocols`: Names the measuring protocols: what a stored number means, without looking at source
  files.
* `rounding`: Rounds results of linear algebra to as many digits as are the same everywhere.
* `scratch`: Makes temporary folders that are gone afterwards, those of processes that were killed
  included.
* `store`: Stores what was measured or made once: values by key in files, found again for ever.
* `subprocesses`: Starts processes of the package's own modules, and programs; they end with this
  process, however it ends.
* `table_store`: Tables by key hold what is made once beside the measured rows, as plans and checks.
* `tensors`: Reads and writes users' tensors: .npz and .npy inputs, held against what a model
  expects, and .npz outputs.
* `termination`: Handles SIGTERM in processes that run others, and the end of what started them:
  they end after what they run.
* `topology`: Sorts things that wait for each other into an order in which they can run.
* `workers`: Runs one job of this package in a process: a document on stdin, another on stdout, and
  what is said where it fails.
"""
