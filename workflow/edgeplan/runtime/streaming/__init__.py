"""Models that run in less memory than their weights take: weights come from the disk while steps run (FlexNN, section 3.4).

Modules:

* `again`: Plans made again in the process that runs one, for another budget: from the stored
  profile, without anything heavy.
* `build`: From a model to a program that streams: steps cut into ranges, kernels chosen, buffers
  named, weights laid out.
* `calls`: The calls of a program bound to memory: kernels made once, and of each step the addresses
  of its operands alone.
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
* `rows`: Tables that are gathered from stay in the file: a step reads the rows that its indices
  name, and no others.
* `schedules`: Schedules of one program for other budgets, packed: what a change of the budget
  needs, without planning.
* `session`: Running a streamed program: one arena, weights loaded into it while steps run.
* `worker`: A plan run in a process of its own, `python -m edgeplan.runtime.streaming.worker`: JSON
  on stdin, JSON on stdout.
"""
