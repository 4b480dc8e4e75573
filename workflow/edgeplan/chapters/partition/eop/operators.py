"""Operators as EOP names them: what a step is in its tables, and graphs of each alone at different sizes (table 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import pandas as pd

from edgeplan.chapters.partition.costs import ModelCosts, Priced, costs_of
from edgeplan.chapters.partition.eop.sweeps import SweptModel
from edgeplan.chapters.partition.settings import EopSettings
from edgeplan.graph.steps import Lowered, Step
from edgeplan.planning.partition.costs import SPLIT, PairCosts
from edgeplan.runtime.partitioned.program import Assignment, Split
from edgeplan.runtime.partitioned.sections import Dimension, extent
from edgeplan.workloads.exported import ExportBuilder, Exported

_US = 1e3


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
    by_step, priced = dict(iter(swept.groupby("step"))), list[Priced]()
    for k, why in enumerate(refused):
        options: list[dict[str, object]] = []
        places: list[Assignment] = []
        own = by_step[k]
        times = (own[["cpu_us", "gpu_us"]].to_numpy(float) / _US).tolist()
        ends = own[["end", "size"]].to_numpy(int).tolist()
        for dimension, (end, size), (cpu_ms, gpu_ms) in zip(own["dimension"].tolist(), ends, times, strict=True):
            if dimension:
                share = {"cpu_share": end / size, "dimension": dimension}
                options.append({"on": "split", "cpu_ms": cpu_ms, "gpu_ms": gpu_ms, **share})
                places.append(Split(end, Dimension(dimension)))
            else:
                options.append({"on": "cpu", "cpu_ms": cpu_ms} if end else {"on": "gpu", "gpu_ms": gpu_ms})
                places.append(0 if end else 1)
        entry: dict[str, object] = {"options": options}
        if not any(isinstance(place, Split) for place in places):
            entry["unsplittable"] = f"the GPU has no kernel of it: {why}" if why else "no dimension of it can be cut"
        priced.append((entry, places))
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
OF_PAPER: Mapping[Dimension, str] = MappingProxyType(
    {Dimension.batch: BATCH, Dimension.rows: HW, Dimension.elements: HW, Dimension.channels: "channels"}
)


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
    """An operator that is sampled over a dimension.

    Attributes:
        operator, dimension: by the paper's names.
        sizes: name of the setting that says at which.
        build: the graph at a size.
    """

    operator: str
    dimension: str
    sizes: str
    build: Callable[[int], Exported]

    def at(self, settings: EopSettings) -> Sequence[int]:
        """Return the sizes that settings say."""
        found: Sequence[int] = getattr(settings, self.sizes)
        return found


def _alone(
    op_type: str, shape: Callable[[int], tuple[int, ...]], kind: str = "plain", **attributes: object
) -> Callable[[int], Exported]:
    """A graph of an operator, `REPEATS` times, each on an input of its own."""

    def build(size: int) -> Exported:
        b = ExportBuilder(f"{op_type} at {size}")
        own = shape(size)
        outputs: dict[str, str] = {}
        for k in range(REPEATS):
            x = b.input(f"x{k}", own)
            scope = f"/{k}"
            if kind == "pair":
                made = [b.node(op_type, [x, b.input(f"z{k}", own)], scope, **attributes)]
            elif kind == "parts":
                made = list(b.nodes(op_type, [x], 4, scope, **attributes))
            elif kind == "window":
                made = [
                    b.node(op_type, [x, b.weight(f"w{k}", (64, own[1], 3, 3), 0.05), b.bias(scope, 64)], scope, **attributes)
                ]
            elif kind == "matrix":
                weight = b.weight(f"w{k}", (own[-1], own[-1]), 0.05)
                made = [b.node(op_type, [x, weight, b.bias(scope, own[-1])], scope, **attributes)]
            else:
                made = [b.node(op_type, [x], scope, **attributes)]
            outputs |= {f"y{k}_{place}": tensor for place, tensor in enumerate(made)}
        return b.build(outputs)

    return build


#: Hidden units, inputs of gates, and features of transformers.
_UNITS, _GATES, _FEATURES = 64, 256, 768
_PADS = [1, 1, 1, 1]
SAMPLED: tuple[SampledOperator, ...] = (
    SampledOperator(
        "conv2d", BATCH, "batches", _alone("Conv", lambda n: (n, 64, 28, 28), "window", kernel_shape=[3, 3], pads=_PADS)
    ),
    SampledOperator(
        "conv2d", HW, "heights", _alone("Conv", lambda n: (1, 64, n, n), "window", kernel_shape=[3, 3], pads=_PADS)
    ),
    SampledOperator("relu", BATCH, "batches", _alone("Relu", lambda n: (n, 64, 28, 28))),
    SampledOperator("relu", HW, "heights", _alone("Relu", lambda n: (1, 64, n, n))),
    SampledOperator("dense", BATCH, "batches", _alone("Gemm", lambda n: (n, _FEATURES), "matrix")),
    SampledOperator("dense", PRODUCT, "widths", _alone("Gemm", lambda n: (n, n), "matrix")),
    SampledOperator("sigmoid", BATCH, "batches", _alone("Sigmoid", lambda n: (n, _UNITS))),
    SampledOperator("sigmoid", HW, "heights", _alone("Sigmoid", lambda n: (1, n))),
    SampledOperator("tanh", BATCH, "batches", _alone("Tanh", lambda n: (n, _UNITS))),
    SampledOperator("tanh", HW, "heights", _alone("Tanh", lambda n: (1, n))),
    SampledOperator("add", BATCH, "batches", _alone("Add", lambda n: (n, _UNITS), "pair")),
    SampledOperator("add", HW, "heights", _alone("Add", lambda n: (1, n), "pair")),
    SampledOperator("multiply", BATCH, "batches", _alone("Mul", lambda n: (n, _UNITS), "pair")),
    SampledOperator("multiply", HW, "heights", _alone("Mul", lambda n: (1, n), "pair")),
    SampledOperator("concatenate", BATCH, "batches", _alone("Concat", lambda n: (n, _UNITS), "pair", axis=1)),
    SampledOperator("split", BATCH, "batches", _alone("Split", lambda n: (n, _GATES), "parts", axis=1)),
    SampledOperator("split", HW, "heights", _alone("Split", lambda n: (16, 4 * n), "parts", axis=1)),
    SampledOperator("transpose", HW, "heights", _alone("Transpose", lambda n: (n, n), perm=[1, 0])),
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
