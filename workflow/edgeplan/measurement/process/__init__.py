"""Starts and measures processes from their first instruction: what is around them, and what they tell.

Modules:

* `background`: Loads one core in the background by a process that is busy for a share of the time
  (NNV12, section 4.2, Figure 11).
* `child`: Starts a fresh process for every cold run, where nothing of the model, the engine or its
  caches is left.
* `clock`: References are timed beside profiles and beside cold starts, to tell how slow the machine
  is now.
* `counters`: Reads the system's counters of this process: faults, resident memory, bytes from the
  disk.
* `energy`: Measures energy by the processor's own counters (RAPL, Linux powercap), where the
  machine exposes them.
* `first_execution`: Times the first execution of a step in a process beside its second, for
  `edgeplan.profiling.first_call_costs`.
* `gpu_starts`: Starts a plan of a GPU in a process of its own, `python -m
  edgeplan.measurement.process.gpu_starts`.
* `host_memory`: Every engine starts the clock with the same memory: its code is mapped, and the
  machine has memory at hand.
* `inputs`: Draws the inputs of a run and compares its outputs.
* `interference`: Tells whether the processors of a run are its own, or share their cores with
  someone.
* `job`: Defines the documents that pass between the measuring process and its workers: a job in, a
  result out.
* `memory_group`: A process held to a limit of memory by the system: a memory cgroup, of version 1
  or 2, page cache counted.
* `own_files`: A process finds copies of its own in place of the files that it maps: `command_with`
  starts it so.
* `page_cache`: Manages the page cache of Linux file by file: evict, fill, look, and time the disk
  behind it.
* `prepare_machine`: Prepares the machine last before the clock starts: page cache and memory are as
  they should be, processors free.
* `prepared_plan`: Turns a plan folder into an artefact that the worker of cold starts loads.
* `read_ahead`: The read-ahead of a disk is told, set for a while, and put back even where this
  process is killed.
* `starts`: Starts a plan folder cold, each time in a fresh process of its own.
* `stock`: Runs stock engines beside a plan: what memory they take, and how long.
* `stock_memory`: A stock engine's memory is measured in a process of its own: `python -m
  edgeplan.measurement.process.stock_memory`.
* `undisturbed_start`: Finds a cold start that had its processors for itself, if there was one.
* `worker`: Executes one job in a process of its own, `python -m
  edgeplan.measurement.process.worker`: JSON on stdin and stdout.
"""
