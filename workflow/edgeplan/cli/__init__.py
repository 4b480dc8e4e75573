"""Parses and runs the commands of edgeplan. `edgeplan run` starts without typer and rich: their memory counts beside a budget.

Modules:

* `adapt`: Runs the command `edgeplan device adapt`.
* `ahead`: Compiles images ahead, in an order that lets two processes share the work.
* `board`: Runs `edgeplan device deploy`, `bundle` and `collect`, which bring edgeplan to other
  machines and rows back.
* `cold_start`: The command `edgeplan plan cold-start` prints what was planned.
* `commands`: Prints what the functions of the interface return; a command is imported when it is
  called.
* `compile`: The command `edgeplan compile` compiles ahead what other commands would wait for, on
  two processors where there are two.
* `device`: Runs the commands `edgeplan device init` and `edgeplan device check`.
* `ending`: Ends a command with its output written, or with one message and an exit code.
* `export`: The command `edgeplan export` writes a named model: something to predict, plan and run
  where no model is at hand.
* `front`: The command `edgeplan plan MODEL` prints the plans of a model that no other beats, and
  writes one of them.
* `front_picture`: The front of a model as a picture: what its plans take in memory, and how long
  their first and later inferences take.
* `gpu_start`: Prints the lines on plans of cold starts on a GPU.
* `layout`: The command `edgeplan plan layout` places buffers of known lifetimes.
* `measure`: Runs `edgeplan measure`, which measures a model on this machine and prints what was
  predicted beside it.
* `memory`: The command `edgeplan plan memory` prints what was planned.
* `partition`: The command `edgeplan plan partition` prints what was planned.
* `predict`: Runs `edgeplan predict`, which predicts the latency of a model on a device.
* `preparation`: Prepares models as exporters write them, by options of commands and by `edgeplan
  prepare`.
* `run`: The command `edgeplan run` executes a plan folder of any kind.
* `run_files`: Converts files of tensors around a run of a plan of memory, in a process: `python -m
  edgeplan.cli.run_files`.
* `run_memory`: Runs a plan of memory for `edgeplan run`: this process holds the session alone, and
  stays within its budget.
* `run_pair`: Prints the lines of `edgeplan run` for a plan of a pair.
* `run_together`: Runs several plans of memory for `edgeplan run a/ b/ --budget 100MiB`: in this
  process alone, within one budget.
* `stage`: Runs `edgeplan stage`, which runs one stage of the pipeline, for Snakemake, DVC and
  people alike.
* `times`: Formats times as commands print them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["app", "main"]


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:] == ["worker"]:
        if sys.version_info < (3, 11):  # noqa: UP036  a board may have an older one, and is told so
            sys.exit(f"edgeplan needs Python 3.11 or newer, this is {sys.version.split()[0]}")
        from edgeplan.measurement.board.worker import main as command  # noqa: PLC0415  see above
    elif sys.argv[1:2] == ["run"]:
        if any(map(_is_of_memory, sys.argv[2:])):
            from edgeplan.runtime import preloading  # noqa: PLC0415  see above

            preloading.begin()
        from edgeplan.cli.run import main as command  # noqa: PLC0415  see above
    else:
        from edgeplan.cli.commands import main as command  # noqa: PLC0415  likewise
    command()


def _is_of_memory(word: str) -> bool:
    """Tell whether a plan of memory lies there, which this process will run."""
    return os.path.exists(f"{word}/weights.bin")  # noqa: PTH110  pathlib takes time to be imported


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgeplan.cli.commands import app  # noqa: PLC0415  see above

    return app
