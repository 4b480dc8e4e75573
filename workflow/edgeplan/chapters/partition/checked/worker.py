"""A plan held open in a process of its own, `python -m edgeplan.chapters.partition.checked.worker FOLDER`, and run when asked.

Each line on stdin is a word, each answer a line of JSON. `turn`: some inferences back to back, their times in ms. `steps`: the
time of each of the model's steps in the last one. `outputs PATH`: the last outputs are written to a file, `.npz`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from edgeplan.errors import EdgeplanError
from edgeplan.measurement.process.inputs import random_inputs_of
from edgeplan.opening import open_plan
from edgeplan.support.own_process import take_stdout

if TYPE_CHECKING:
    from edgeplan.engines.serving import EngineSession
    from edgeplan.runtime.partitioned.session import PairSession

#: Of a turn: the first inference finds the caches of another process, and does not count.
FIRST, COUNTED = 1, 2


def main() -> None:
    """Open the plan, say so, and answer until stdin ends."""
    stdout = os.fdopen(take_stdout(), "w")

    def say(answer: object) -> None:
        stdout.write(json.dumps(answer) + "\n")
        stdout.flush()

    try:
        with cast("PairSession | EngineSession", open_plan(Path(sys.argv[1]))) as session:
            inputs = random_inputs_of(session.inputs)
            session.run(inputs)
            say([])
            for line in sys.stdin:
                say(_answered(session, inputs, *line.split(maxsplit=1)))
    except EdgeplanError as error:
        say({"what": error.what, "where": error.where, "next_step": error.next_step})


def _answered(session: PairSession | EngineSession, inputs: dict[str, Any], asked: str, path: str = "") -> object:
    if asked == "turn":
        return [session.inference_ms(inputs) for _ in range(FIRST + COUNTED)][FIRST:]
    if asked == "steps":
        return [max(here, there) - start for start, here, there in session.spans_ms()]
    np.savez(path.strip(), allow_pickle=False, **session.outputs())
    return []


if __name__ == "__main__":
    main()
