"""The command line starts `edgeplan run` without typer and rich: what they take counts beside a budget.

`edgeplan run` starts without typer and rich: what they take counts beside a budget.

Modules:

* `adapt`: The command `edgeplan device adapt`.
* `ahead`: Images are compiled ahead in an order in which two processes can share the work.
* `board`: The commands that bring edgeplan to other machines and rows back: `edgeplan device
  deploy`, `bundle` and `collect`.
* `cold_start`: The command `edgeplan plan cold-start` prints what was planned.
* `commands`: The command line: it prints what the functions of the interface return; a command is
  imported when it is called.
* `compile`: The command `edgeplan compile` compiles ahead what other commands would wait for, on
  two processors where there are two.
* `device`: The commands `edgeplan device init` and `edgeplan device check`.
* `ending`: A command ends with its output written, or with one message and an exit code.
* `export`: The command `edgeplan export` writes a named model: something to predict, plan and run
  where no model is at hand.
* `front`: The command `edgeplan plan MODEL` prints the plans of a model that no other beats, and
  writes one of them.
* `layout`: The command `edgeplan plan layout` places buffers of known lifetimes.
* `measure`: The command that measures a model on this machine and prints what was predicted beside
  it: `edgeplan measure`.
* `memory`: The command `edgeplan plan memory` prints what was planned.
* `partition`: The command `edgeplan plan partition` prints what was planned.
* `predict`: The command that predicts the latency of a model on a device: `edgeplan predict`.
* `preparation`: Options prepare models as exporters write them, and a command writes the prepared
  one: `edgeplan prepare`.
* `run`: The command `edgeplan run` executes a plan folder of any kind.
* `run_files`: Files of tensors around a run of a plan of memory, in a process of their own: `python
  -m edgeplan.cli.run_files`.
* `run_memory`: A plan of memory run by `edgeplan run`: this process holds the session alone, and
  stays within its budget.
* `run_pair`: The lines that `edgeplan run` prints of a plan of a pair.
* `stage`: The command that runs one stage of the pipeline, for Snakemake, DVC and people alike:
  `edgeplan stage`.
* `times`: Times as commands print them.
"""

from __future__ import annotations

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
        from edgeplan.cli.run import main as command  # noqa: PLC0415  see above
    else:
        from edgeplan.cli.commands import main as command  # noqa: PLC0415  likewise
    command()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgeplan.cli.commands import app  # noqa: PLC0415  see above

    return app
