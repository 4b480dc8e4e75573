"""Holds a plan open that edgeplan-run does not run, and is asked by lines, as of `engines.program`.

Arguments are the folder, a file of inputs, which are drawn without, and a file for outputs. It opens the plan for the first
line, and runs it once. Then `run` runs it once more, `save` writes the first outputs, to another file if that is named, `turn`
runs it some times back to back, and answers the ms of those that count, and `steps` answers the ms of each of the model's steps
in the last one. What goes wrong is a document of the error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from edgeplan.errors import EdgeplanError
from edgeplan.measurement.process.inputs import random_inputs_of
from edgeplan.opening import open_plan
from edgeplan.support.own_process import take_stdout
from edgeplan.support.tensors import read_outputs, write_outputs

if TYPE_CHECKING:
    from edgeplan.engines.serving import EngineSession
    from edgeplan.runtime.partitioned.session import PairSession

#: Of a turn: the first inference finds the caches of another process, and does not count.
_FIRST, _COUNTED = 1, 2


def main() -> None:
    """Open the plan, and answer until stdin ends."""
    stdout = os.fdopen(take_stdout(), "w")

    def say(answer: object) -> None:
        stdout.write(json.dumps(answer) + "\n")
        stdout.flush()

    folder, *files = sys.argv[1:]
    sys.stdin.readline()
    start = time.perf_counter()
    try:
        with cast("PairSession | EngineSession", open_plan(folder)) as session:
            inputs = read_outputs(files[0]) if files else random_inputs_of(session.inputs)
            opened = time.perf_counter()
            outputs = session.run(inputs)
            say({"open": opened - start, "first_run": time.perf_counter() - opened})
            for line in sys.stdin:
                asked, _, path = line.strip().partition(" ")
                if asked == "save":
                    write_outputs(Path(path or files[1]), outputs)
                    say({"saved": 1})
                elif asked == "turn":
                    say([session.inference_ms(inputs) for _ in range(_FIRST + _COUNTED)][_FIRST:])
                elif asked == "steps":
                    say([max(here, there) - start for start, here, there in session.spans_ms()])
                else:
                    start = time.perf_counter()
                    session.run(inputs)
                    say({"run": time.perf_counter() - start})
    except EdgeplanError as error:
        say({"what": error.what, "where": error.where, "next_step": error.next_step})
        raise


if __name__ == "__main__":
    main()
