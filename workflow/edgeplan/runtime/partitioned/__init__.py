"""Programs that run on two processors side by side, steps whole or split by channels.

Modules:

* `document`: A pair's plan folder holds sub-steps on two lanes, with kernels chosen, places given
  and weights beside them.
* `handshake`: The cost of handing over is that of a chain of empty steps, each of which waits for
  the other processor's one before.
* `lanes`: The two lanes of a partition run once: by polling, or by events.
* `program`: A partition as a program: sub-steps on two lanes, and what each waits for.
* `sections`: Sections: a step cut in two or more over its batch, its rows, its elements or its
  channels (EOP, table 2).
* `session`: A partition executed: the GPU's lane in its queue, the CPU's in the calling thread, one
  inference at a time.
"""
