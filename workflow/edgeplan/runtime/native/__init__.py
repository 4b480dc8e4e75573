"""A cold start does these things for every step in compiled code: make the library's objects, fetch weights, execute.

In Python, a quarter of a preparation's time goes into the interpreter, and two threads that prepare hand it to each other at
every C call, which takes as long again. Compiled code needs it for neither. It interprets a tape (`tape.py`), decides nothing.

Python calls these functions through `entries`, and the loop over bound calls through `calls`, while other threads have the
interpreter. Whatever goes wrong is returned as a code, and Python does that step again in its own words. `build` compiles the
modules beside it into images, which are mapped.

Modules:

* `build`: The compiled loops as functions that C calls: what Python hands over are words and
  addresses of arrays.
* `calls`: The compiled loop over steps whose calls are bound, as Python calls it: nothing heavy is
  imported.
* `code_slots`: Functions of the C types of `mmap`, `mprotect` and `munmap` that hand out slots of a
  region, as LLVM assembly.
* `entries`: The compiled functions of a cold start as Python calls them, while other threads have
  the interpreter.
* `intrinsics`: These intrinsics give numba calls by address, and words that other threads see in
  order.
* `lanes`: The lanes of a cold start: who prepares what next, and the execution that follows.
* `making`: The library's objects, made by the operations of a tape.
* `mixing`: Words mixed into a few, at the speed of memory: what `runtime.memory.checksum` is made
  from.
* `partner`: The loop over the steps of a program, whatever its plan is of: wait for a counter, run
  a step, count it.
* `stages`: The stages of a step: its objects made, its weights fetched, its calls written down and
  executed.
* `waiting`: The clock, and how a thread waits for another one.
* `widening`: Values of half the bytes (bf16, float16) are widened to float32 by these functions, as
  LLVM assembly: nothing is rounded.
* `words`: Compiled code and Python agree on these kinds, rows of tables, and arrays that pass
  between them.
"""
