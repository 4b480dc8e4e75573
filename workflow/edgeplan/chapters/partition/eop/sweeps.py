"""Steps of a model measured where they run: whole on each processor, and split over every dimension at every share.

One session splits all steps that can be split at one share, so that each finds the caches as its model leaves them, and its
parts run beside each other. What a row costs is thus an inference, not a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.partition.learning.features import Floats
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.errors import EdgeplanError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.layouts import BLOCKED, NCHW
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Assignment, Partitioned, Split, partition
from edgeplan.runtime.partitioned.sections import Dimension, extent, why_not_split
from edgeplan.runtime.partitioned.session import PairSession
from edgeplan.runtime.program import activation_layouts, blocked_images

Array = npt.NDArray[Any]
#: Columns of a sweep: the number of a step; what it is split over ("" for whole), how much of it the CPU has and of how much;
#: what each processor took for its part, and the time from the start of both to the end of both.
SWEEP = ("step", "dimension", "end", "size", "cpu_us", "gpu_us", "span_us")
_US = 1e3
_WARM = 1


@dataclass(frozen=True)
class SweptModel:
    """A swept model has its steps, layouts and inputs."""

    name: str
    model: Path
    lowered: Lowered
    layouts: Mapping[str, str]
    inputs: Mapping[str, Array]


def subject_of(name: str, model: Path, seed: int) -> SweptModel:
    """A model with inputs of a seed: ids and masks of 0 and 1, all else normal."""
    lowered = lower(load_onnx(model), eight_bits=False)
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for tensor in lowered.inputs:
        shape, dtype = lowered.shapes[tensor], lowered.types.get(tensor)
        inputs[tensor] = (
            rng.integers(0, 2, shape).astype(dtype) if dtype is not None else rng.standard_normal(shape).astype(np.float32)
        )
    return SweptModel(name, model, lowered, swept_layouts(lowered), inputs)


def swept_layouts(lowered: Lowered) -> Mapping[str, str]:
    """The layouts in which a model is swept: images in blocks, all else row-major."""
    images = any(step.kind == "conv" for step in lowered.steps)
    return blocked_images(lowered) if images else activation_layouts(lowered, NCHW)


def inside(subject: SweptModel) -> SweptModel:
    """The same with images in blocks at the border, too, as they are inside a model; what they hold is then any value."""
    return replace(subject, layouts=dict.fromkeys(subject.layouts, BLOCKED))


def on_gpu(pair: Opened, subject: SweptModel) -> list[str]:
    """For each step why the GPU does not run it; "" where it does."""
    return [pair.other.refuses(subject.lowered, step, subject.layouts) for step in subject.lowered.steps]


def sweep(pair: Opened, subject: SweptModel, shares: Sequence[float], runs: int) -> pd.DataFrame:
    """Measure the steps of a model whole and split, on a pair whose GPU notes times."""
    refused, block = on_gpu(pair, subject), pair.block
    rows: list[dict[str, Any]] = []
    for lane in (0, 1):
        whole: list[Assignment] = [0 if lane == 0 or why else 1 for why in refused]
        rows += _rows(pair, subject, whole, runs, {k: ("", int(lane == 0), 1) for k, a in enumerate(whole) if a == lane})
    for dimension in Dimension:
        able = [
            k
            for k, (step, why) in enumerate(zip(subject.lowered.steps, refused, strict=True))
            if not why and not why_not_split(subject.lowered, subject.layouts, block, step, dimension)
        ]
        seen: set[tuple[int, int]] = set()
        for share in shares if able else ():
            assigned: list[Assignment] = [0] * len(refused)
            names: dict[int, tuple[str, int, int]] = {}
            for k in able:
                whole_size = extent(subject.lowered, block, subject.lowered.steps[k], dimension)
                end = whole_size.nearest(share)
                assigned[k] = Split(end, dimension)
                names[k] = (dimension.value, end, whole_size.size)
            fresh = {k: found for k, found in names.items() if (k, found[1]) not in seen}
            seen |= {(k, found[1]) for k, found in fresh.items()}
            if fresh:
                rows += _rows(pair, subject, assigned, runs, fresh)
    return pd.DataFrame(rows, columns=list(SWEEP))


def _rows(
    pair: Opened, subject: SweptModel, assigned: list[Assignment], runs: int, names: Mapping[int, tuple[str, int, int]]
) -> list[dict[str, Any]]:
    made = executable_parts(pair, subject, assigned)
    cpu, gpu, span = timed_steps(pair, subject, made, runs)
    kept = [k for k in names if isinstance(assigned[k], int) or _is_split(made, k)]
    return [dict(zip(SWEEP, (k, *names[k], float(cpu[k]), float(gpu[k]), float(span[k])), strict=True)) for k in kept]


def _is_split(made: Partitioned, step: int) -> bool:
    return len({lane for lane, origin in zip(made.lanes, made.ranged.origin, strict=True) if origin == step}) > 1


def executable_parts(pair: Opened, subject: SweptModel, assigned: list[Assignment]) -> Partitioned:
    """The steps on two lanes; where the GPU has no kernel of its part of a step, the CPU runs it whole."""
    block = pair.block
    made = partition(subject.lowered, subject.layouts, block, assigned)
    lacking = {
        made.ranged.origin[k]
        for k in made.of(1)
        if pair.other.refuses(made.ranged.lowered, made.ranged.lowered.steps[k], made.layouts)
    }
    if not lacking:
        return made
    given: list[Assignment] = [0 if k in lacking else a for k, a in enumerate(assigned)]
    return partition(subject.lowered, subject.layouts, block, given)


def timed_steps(pair: Opened, subject: SweptModel, made: Partitioned, runs: int) -> tuple[Floats, Floats, Floats]:
    """Return for each step, in us, the median over runs of the CPU's part, the GPU's, and from the first start to the last end.

    A part that there is not is not a number.
    """
    lanes, origin = np.array(made.lanes), np.array(made.ranged.origin)
    count = len(subject.lowered.steps)
    found = np.full((3, runs, count), np.nan)
    with session_of(pair, subject, made) as session:
        for run in range(-_WARM, runs):
            session.run(subject.inputs)
            if run < 0:
                continue
            begin, end = (session.times / _US).T
            bounds = np.array([[np.full(count, np.inf), np.full(count, -np.inf)] for _ in (0, 1)])
            np.minimum.at(bounds[:, 0], (lanes, origin), begin)
            np.maximum.at(bounds[:, 1], (lanes, origin), end)
            taken = bounds[:, 1] - bounds[:, 0]
            found[:2, run] = np.where(np.isfinite(taken), taken, np.nan)
            found[2, run] = bounds[:, 1].max(axis=0) - bounds[:, 0].min(axis=0)
    cpu, gpu, span = np.median(found, axis=1)
    return cpu, gpu, span


def session_of(pair: Opened, subject: SweptModel, made: Partitioned) -> PairSession:
    """A new session of a model's parts."""
    return PairSession.of(*pair.processors, made, subject.model, pair.synchronisation)


def reason_of(error: EdgeplanError) -> str:
    """An error in one line."""
    return error.what.splitlines()[0]
