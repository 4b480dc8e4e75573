"""Measures subjects on a device: references, blocks, the lock and the row store.

Modules:

* `bench`: Measures on a bench what the row store does not hold yet.
* `blocks`: Times a batch of subjects in interleaved blocks.
* `board/`: Measures on boards: machines that a command reaches, on which a worker measures for this
  host.
* `budget`: Bounds the time by the clock that measuring may take.
* `collect`: Collecting brings rows that another machine measured into this workspace, each once:
  `edgeplan device collect`.
* `device_check`: The command `edgeplan device check` tells whether figures from this machine can be
  trusted.
* `gate`: The gate of a board: no batch begins while it is hot, and none counts during which it was
  throttled.
* `local`: Measures on this machine: an engine in this process, on the device's cores, beside the
  references.
* `lock`: Locks a physical machine while it measures: all CPU devices share its cores, whatever
  workspace they are measured from.
* `measurer`: A measurer times batches of subjects on one machine: on this one, or on a board that a
  command reaches.
* `measurers`: Chooses the measurer of a device: this machine, or a board.
* `noise`: Noisy subjects are measured again, kept with their noise, or, where that is refused, end
  the stage.
* `nominal`: Nominal times of the references, taken on the quiet machine, are the scale of measured
  times.
* `others`: This module tells how much of the processors' time others have: while something is
  measured, and now.
* `preemption`: Times runs that no other process interrupted, and counts what interrupts.
* `process/`: Starts and measures processes from their first instruction: what is around them, and
  what they tell.
* `provenance`: Names the state of the code that rows are measured by.
* `records`: Defines the subjects of measurements, and the records that measurements give.
* `references`: Times two reference loads beside every block, so that drift of the machine can be
  divided out.
* `rows`: Stores measurements as rows of Parquet files: every one once, for ever.
* `settings`: Declares the `measurement` section of params.yaml.
* `whole_model`: Measures one model file on this machine now, as whole models of the pipeline are:
  `edgeplan measure`.
"""
