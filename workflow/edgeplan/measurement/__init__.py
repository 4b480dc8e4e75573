"""This package measures: it has references, blocks, the lock and the row store.

Modules:

* `bench`: The bench: measures what the row store does not hold yet.
* `blocks`: Timing a batch of subjects in interleaved blocks.
* `board/`: Boards: machines that a command reaches, on which a worker measures for this host.
* `budget`: Time by the clock that measuring may take.
* `collect`: Collecting brings rows that another machine measured into this workspace, each once:
  `edgeplan device collect`.
* `device_check`: The command `edgeplan device check` tells whether figures from this machine can be
  trusted.
* `gate`: The gate of a board: no batch begins while it is hot, and none counts during which it was
  throttled.
* `local`: Measuring on this machine: an engine in this process, on the device's cores, beside the
  references.
* `lock`: One lock per physical machine: all CPU devices share its cores, whatever workspace they
  are measured from.
* `measurer`: A measurer times batches of subjects on one machine: on this one, or on a board that a
  command reaches.
* `measurers`: Which measurer a device has: this machine, or a board.
* `noise`: Noisy subjects are measured again, kept with their noise, or, where that is refused, end
  the stage.
* `nominal`: Nominal times of the references, taken on the quiet machine, are the scale of measured
  times.
* `others`: This module tells how much of the processors' time others have: while something is
  measured, and now.
* `preemption`: Runs that another process interrupted, and processors that are free.
* `process/`: Processes that are measured from their first instruction: how they are started, what
  is around them, what they tell.
* `provenance`: By which state of the code rows are measured.
* `records`: Subjects of measurements, and the records that measurements give.
* `references`: Two reference loads timed beside every block, so that drift of the machine can be
  divided out.
* `rows`: Measurements as rows of Parquet files: every one once, for ever.
* `settings`: The `measurement` section of params.yaml.
* `whole_model`: Measuring one model file on this machine now, as whole models of the pipeline are:
  `edgeplan measure`.
"""
