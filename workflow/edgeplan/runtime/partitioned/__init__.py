"""Programs that run on two processors side by side, steps whole or split by channels.

Modules:

* `build`: From a partition to the program that executes it, its weights, and where and when its
  steps run.
* `crossing`: Crossings: what one processor writes and the other reads is moved, where each has its
  own copy of the activations.
* `document`: The documents of a pair's plan: where each step runs and on what, and what was
  predicted.
* `fallback`: A fallback for a pair whose inferences take longer than when its plan was checked: the
  better of its processors alone.
* `handshake`: The cost of handing over is that of a chain of empty steps, each of which waits for
  the other processor's one before.
* `lanes`: The two lanes of a partition run once: by polling, or by events.
* `program`: A partition as a program: sub-steps on two lanes, and what each waits for.
* `sections`: Sections: a step cut in two or more over its batch, its rows, its elements or its
  channels (EOP, table 2).
* `session`: A partition executed: the GPU's lane in its queue, the CPU's in the calling thread, one
  inference at a time.
"""
