"""Processes that are measured from their first instruction: how they are started, what is around them, what they tell.

Modules:

* `background`: A background load on one core: a process that is busy for a share of the time (NNV12
  section 4.2, Figure 11).
* `child`: A fresh process for every run: cold inference is measured where nothing of the model, the
  engine or its caches is left.
* `clock`: References are timed beside profiles and beside cold starts, to tell how slow the machine
  is now.
* `counters`: The system's counters of this process: faults, resident memory, bytes from the disk.
* `energy`: Energy by the processor's own counters (RAPL, Linux powercap), where the machine exposes
  them.
* `first_execution`: The first execution of a step in a process, beside its second:
  `edgeplan.profiling.first_call_costs` has it measured.
* `host_memory`: Every engine starts the clock with the same memory: its code is mapped, and the
  machine has memory at hand.
* `inputs`: Inputs and outputs of a run, and their comparison.
* `interference`: This module tells whether the processors of a run are its own, or share their
  cores with someone.
* `job`: The documents that pass between the measuring process and its workers: a job in, a result
  out.
* `memory_group`: A process held to a limit of memory by the system: a memory cgroup, of version 1
  or 2, page cache counted.
* `own_files`: A process finds copies of its own in place of the files that it maps: `command_with`
  starts it so.
* `page_cache`: The page cache of Linux, file by file: evict, fill, look, and the bandwidth of the
  disk behind it.
* `prepare_machine`: This is done last before the clock starts: page cache and memory are made what
  they are to be, and processors free.
* `prepared_plan`: A plan folder as the worker of cold starts takes it.
* `starts`: Cold starts of a plan folder, each in a fresh process of its own.
* `stock`: Stock engines beside a plan: what they take of memory, and how long.
* `stock_memory`: A stock engine's memory is measured in a process of its own: `python -m
  edgeplan.measurement.process.stock_memory`.
* `undisturbed_start`: A cold start whose processors were its own, if there was one.
* `worker`: One job in a process of its own, `python -m edgeplan.measurement.process.worker`: JSON
  on stdin, JSON on stdout.
"""
