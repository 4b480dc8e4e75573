"""Random inputs of a plan of memory, written without numpy: a process that makes them with it takes more than some plans do."""

from __future__ import annotations

from _random import Random  # the generator of `random` without what that module imports: OpenSSL, for seeds that are texts
from array import array
from pathlib import Path

from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.streaming.program import Border, StreamProgram

_CODES = {"float32": "f", "int64": "q", "int32": "i", "int8": "b", "uint8": "B", "bool": "B"}
_LOW, _RANGE = 0.05, 0.95  # no zeros, no denormals


def random_inputs(plan: PlanFolder, work: Path, seed: int = 0) -> bool:
    """Write seeded inputs of a plan, as `<number>.in`.

    Args:
        plan: the plan folder.
        work: the folder for the files.
        seed: of all inputs.

    Returns:
        Whether they were written: an input of another type needs numpy.
    """
    borders = plan.program_of(StreamProgram).inputs
    if any(border.dtype not in _CODES for border in borders):
        return False
    draw = Random(seed)
    for number, border in enumerate(borders):
        (work / f"{number}.in").write_bytes(_values(border, draw))
    return True


def _values(border: Border, draw: Random) -> array[float] | array[int]:
    code = _CODES[border.dtype]
    count = border.size // array(code).itemsize
    if code == "f":
        return array(code, (_LOW + _RANGE * draw.random() for _ in range(count)))
    return array(code, (int(border.below * draw.random()) for _ in range(count)))
