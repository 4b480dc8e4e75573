"""The command line.

Modules:

* `ahead`: All that is compiled, in an order in which two processes can share the work.
* `commands`: The command line: it prints what the functions of `edgeplan.api` return.
* `compile`: The command `edgeplan compile` compiles ahead what other commands would wait for, on
  two processors where there are two.
* `device`: The command that writes a device file for this machine.
* `export`: The command `edgeplan export` writes a named model: something to predict, plan and run
  where no model is at hand.
* `measure`: The command that measures a model on this machine and prints what was predicted beside
  it: `edgeplan measure`.
* `memory`: The command line of memory: `edgeplan plan memory`, and what `edgeplan run` prints of
  such a plan.
* `partition`: The command line of partitions: `edgeplan plan partition`, and what `edgeplan run`
  prints of such a plan.
* `plan`: The group `edgeplan plan`, and its command `edgeplan plan cold-start`.
* `predict`: The command that predicts the latency of a model on a device: `edgeplan predict`.
* `preparation`: What commands ask of models as exporters write them, and the command that prepares
  one: `edgeplan prepare`.
* `run`: The command `edgeplan run` executes a plan folder of any kind.
* `stage`: The command that runs one stage of the pipeline, for Snakemake, DVC and people alike:
  `edgeplan stage`.
"""

from edgeplan.cli.commands import app, main

__all__ = ["app", "main"]
