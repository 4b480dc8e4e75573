"""Models that run in less memory than their weights take: weights come from the disk while steps run (FlexNN, section 3.4).

Modules:

* `again`: Plans made again in the process that runs one, for another budget: from the stored
  profile, without anything heavy.
* `anew`: `python -m edgeplan.runtime.streaming.anew FOLDER BUDGET FILE` plans for a budget with all
  that a plan folder knows.
* `background`: A process beside the one that runs makes a plan for all of a budget: what is stored
  for smaller ones leaves memory over.
* `build`: From a model to a program that streams: steps cut into ranges, kernels chosen, buffers
  named, weights laid out.
* `calls`: The calls of a program bound to memory: kernels made once, and of each step the addresses
  of its operands alone.
* `halves`: Weights in half their bytes: stored as bf16, the upper half of a float32, or as float16,
  and widened where they are read to.
* `kernel_loader`: Loading without threads: the computing thread hands reads to the kernel when a
  step ends, and takes them when it needs them.
* `kernel_reads`: The kernel's asynchronous reads (Linux, `io_submit(2)`), called through libc: no
  thread waits while the disk works.
* `late_kernels`: Kernels that are made while the first inference runs, by the computing thread and
  by another one.
* `lean_inputs`: Random inputs of a plan of memory, written without numpy: a process that makes them
  with it takes more than some plans do.
* `library_pages`: Pages of a loaded library that are in memory: letting go of those that are not
  needed now, and keeping those that are.
* `memory_session`: A plan of memory, opened: its weights come from the disk while it runs, and its
  budget can be changed.
* `phases`: Inferences of a plan of memory, budget by budget.
* `program`: A streamed program is apart from where it lies and when: kernels, operands of each
  step, buffers, segments of weights.
* `reader`: Reading weights past the page cache: direct I/O into memory, a few reads in flight, in
  order of execution.
* `rounding`: Float32 values rounded to halves of their bytes (bf16, float16), and which of them can
  be.
* `rows`: Tables that are gathered from stay in the file: a step reads the rows that its indices
  name, and no others.
* `schedules`: Schedules of one program for other budgets, packed: what a change of the budget
  needs, without planning.
* `session`: Running a streamed program: one arena, weights loaded into it while steps run.
* `spare`: The kernel's books tell, again and again, whether a processor is free for reading threads
  beside the computing ones.
* `start`: Starts the worker as `edgeplan run` starts: the library is loaded while modules are
  imported.
* `together`: Several plans of memory run as one program, in turns: one arena, one reader and one
  budget for all of their models.
* `together_plan`: Plans several models as one program within one budget: weights of which of them
  stay in memory is part of the plan.
* `worker`: A plan run in a process of its own, `python -m edgeplan.runtime.streaming.worker`: JSON
  on stdin, JSON on stdout.
"""
