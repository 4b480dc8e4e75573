"""Steps of a model measured where they run: whole on each processor, and split over every dimension at every share.

One session splits all steps that can be split at one share, so that each finds the caches as its model leaves them, and its
parts run beside each other. What a row costs is thus an inference, not a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.partition.costs import ModelCosts, costs_of, split, whole
from edgeplan.chapters.partition.learning.predictors import Floats
from edgeplan.chapters.partition.measuring.opened import Opened, ends_of_runs
from edgeplan.chapters.partition.settings import EopSettings
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.steps import Lowered, Step
from edgeplan.planning.partition.costs import SPLIT, PairCosts
from edgeplan.runtime.layouts import BLOCKED, NCHW
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Assignment, Partitioned, Split, partition
from edgeplan.runtime.partitioned.sections import Dimension, extent, why_not_cut
from edgeplan.runtime.program import activation_layouts, blocked_images
from edgeplan.workloads.exported import ExportBuilder, Exported

Array = npt.NDArray[Any]
#: Columns of a sweep: the number of a step; what it is split over ("" for whole), how much of it the CPU has and of how much;
#: what each processor took for its part, and the time from the start of both to the end of both.
SWEEP = ("step", "dimension", "end", "size", "cpu_us", "gpu_us", "span_us")
_US = 1e3


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
            if not why and not why_not_cut(subject.lowered, subject.layouts, block, step, dimension)
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
    kept = [k for k in names if isinstance(assigned[k], int) or np.isfinite([cpu[k], gpu[k]]).all()]
    return [dict(zip(SWEEP, (k, *names[k], float(cpu[k]), float(gpu[k]), float(span[k])), strict=True)) for k in kept]


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
    with pair.session(made, subject.model) as session:
        first, last = ends_of_runs(session, made, partial(session.run, subject.inputs), runs)
    parts = np.where(np.isfinite(first), last - first, np.nan)
    cpu, gpu, span = np.median([*parts, last.max(axis=0) - first.min(axis=0)], axis=1) / _US
    return cpu, gpu, span


def measured_costs(
    lowered: Lowered,
    layouts: Mapping[str, str],
    swept: pd.DataFrame,
    refused: Sequence[str],
    *,
    block: int,
    names: tuple[str, str],
    handshake_ms: float,
    margin: float,
) -> ModelCosts:
    """The costs of a model."""
    by_step, priced = dict(iter(swept.groupby("step"))), []
    for k, why in enumerate(refused):
        own = by_step[k]
        times = (own[["cpu_us", "gpu_us"]].to_numpy(float) / _US).tolist()
        ends = own[["end", "size"]].to_numpy(int).tolist()
        options = [
            split(Split(end, Dimension(over)), size, *both) if over else whole(0 if end else 1, both[0 if end else 1])
            for over, (end, size), both in zip(own["dimension"].tolist(), ends, times, strict=True)
        ]
        lacking = f"the GPU has no kernel of it: {why}" if why else "no dimension of it can be cut"
        priced.append((options, {} if own["dimension"].any() else {"unsplittable": lacking}))
    return costs_of(lowered, layouts, block, priced, names=names, handshake_ms=handshake_ms, error=margin)


def at_ratios(
    subject: SweptModel, block: int, assigned: Sequence[Assignment], ratios: Mapping[int, tuple[str, float]]
) -> list[Assignment]:
    """The same with some steps split at ratios of their own, each at the nearest that can be executed."""
    found = list(assigned)
    for k, (name, share) in ratios.items():
        dimension = Dimension(name)
        found[k] = Split(extent(subject.lowered, block, subject.lowered.steps[k], dimension).nearest(share), dimension)
    return found


def best_options(costs: PairCosts, steps: Sequence[int]) -> dict[int, int]:
    """Return the option of each step that took least, a split with its hand-overs."""
    over = costs.cpu_to_gpu_ms + costs.gpu_to_cpu_ms

    def taken(k: int, option: int) -> float:
        found = costs.steps[k].options[option]
        return found.span_ms + over * (found.kind == SPLIT)

    return {k: min(range(len(costs.steps[k].options)), key=lambda o: taken(k, o)) for k in steps}


#: Times that an operator stands in the graph it is sampled in, each with its own operands, so that none finds them in a cache.
REPEATS = 4
_NAMES = {"conv": "conv2d", "fc": "dense", "matmul": "batch_matmul", "concat": "concatenate", "scale": "batch_norm"} | {
    "logistic": "sigmoid", "mul": "multiply", "sub": "subtract", "div": "divide", "gelu_erf": "gelu",
}  # fmt: skip
BATCH, HW, PRODUCT = "batch", "HW", "HW1W2"
#: Dimensions of the paper by those of sections.
OF_PAPER: Mapping[Dimension, str] = {
    Dimension.batch: BATCH,
    Dimension.rows: HW,
    Dimension.elements: HW,
    Dimension.channels: "channels",
}


def operator_of(step: Step) -> str:
    """The operator that does a step's main work, by the paper's name for it."""
    name = step.text("algorithm") if step.kind in ("eltwise", "binary") else step.kind
    return _NAMES.get(name, name)


def dimension_of(step: Step, dimension: Dimension) -> str:
    """The paper's name of a dimension: rows and columns of a product are HW1W2."""
    product = step.kind in ("fc", "matmul") and dimension in (Dimension.rows, Dimension.channels)
    return PRODUCT if product else OF_PAPER[dimension]


@dataclass(frozen=True, slots=True)
class SampledOperator:
    """An operator that is sampled over a dimension, both by the paper's names; `build` makes the graph at a size."""

    operator: str
    dimension: str
    build: Callable[[int], Exported]

    def at(self, settings: EopSettings) -> Sequence[int]:
        """Return the sizes that settings say."""
        found: Sequence[int] = getattr(settings, _SIZES[self.dimension])
        return found


_SIZES = {BATCH: "batches", HW: "heights", PRODUCT: "widths"}
_Shape = Callable[[int], tuple[int, ...]]


def _alone(op_type: str, kind: str, attributes: Mapping[str, object], shape: _Shape, size: int) -> Exported:
    """A graph of an operator at a size, `REPEATS` times, each on an input of its own."""
    b, own, outputs = ExportBuilder(f"{op_type} at {size}"), shape(size), dict[str, str]()
    for k in range(REPEATS):
        scope, given = f"/{k}", [b.input(f"x{k}", own)]
        if kind == "pair":
            given.append(b.input(f"z{k}", own))
        elif kind == "window":
            given += [b.weight(f"w{k}", (64, own[1], 3, 3), 0.05), b.bias(scope, 64)]
        elif kind == "matrix":
            given += [b.weight(f"w{k}", (own[-1], own[-1]), 0.05), b.bias(scope, own[-1])]
        made = b.nodes(op_type, given, 4 if kind == "parts" else 1, scope, **attributes)
        outputs |= {f"y{k}_{place}": tensor for place, tensor in enumerate(made)}
    return b.build(outputs)


#: Hidden units, inputs of gates, and features of transformers.
_UNITS, _GATES, _FEATURES = 64, 256, 768
_IMAGES: Mapping[str, _Shape] = {BATCH: lambda n: (n, 64, 28, 28), HW: lambda n: (1, 64, n, n)}
_ROWS: Mapping[str, _Shape] = {BATCH: lambda n: (n, _UNITS), HW: lambda n: (1, n)}
#: By operator: its ONNX type, what it reads, its attributes, and the shape of its input at a size, by dimension.
_OPERATORS: Mapping[str, tuple[str, str, Mapping[str, object], Mapping[str, _Shape]]] = {
    "conv2d": ("Conv", "window", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, _IMAGES),
    "relu": ("Relu", "plain", {}, _IMAGES),
    "dense": ("Gemm", "matrix", {}, {BATCH: lambda n: (n, _FEATURES), PRODUCT: lambda n: (n, n)}),
    "sigmoid": ("Sigmoid", "plain", {}, _ROWS),
    "tanh": ("Tanh", "plain", {}, _ROWS),
    "add": ("Add", "pair", {}, _ROWS),
    "multiply": ("Mul", "pair", {}, _ROWS),
    "concatenate": ("Concat", "pair", {"axis": 1}, {BATCH: _ROWS[BATCH]}),
    "split": ("Split", "parts", {"axis": 1}, {BATCH: lambda n: (n, _GATES), HW: lambda n: (16, 4 * n)}),
    "transpose": ("Transpose", "plain", {"perm": [1, 0]}, {HW: lambda n: (n, n)}),
}
SAMPLED = tuple(
    SampledOperator(operator, dimension, partial(_alone, op_type, kind, attributes, shape))
    for operator, (op_type, kind, attributes, shapes) in _OPERATORS.items()
    for dimension, shape in shapes.items()
)


def subgraphs_of(before: Sequence[Sequence[int]]) -> int:
    """Count the subgraphs that follow each other: steps that cut a model in time, and the branches between two of them.

    A step cuts the model if all others run before it or after it: if it is the only one so far that no other has read, and the
    only one from there on that reads none of these.

    Args:
        before: for each step the numbers of those that it reads, all smaller than its own.
    """
    readers: list[list[int]] = [[] for _ in before]
    for k, read in enumerate(before):
        for i in read:
            readers[i].append(k)
    unread, reading, cuts = set[int](), set[int](), {*range(len(before))}
    for k, read in enumerate(before):
        unread = unread.difference(read) | {k}
        if len(unread) > 1:
            cuts.discard(k)
    for k in reversed(range(len(before))):
        reading = reading.difference(readers[k]) | {k}
        if len(reading) > 1:
            cuts.discard(k)
    between = [after - at for at, after in pairwise([-1, *sorted(cuts), len(before)])]
    return len(cuts) + sum(1 for steps in between if steps > 1)
