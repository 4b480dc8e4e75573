"""Layers in chains: many of them, each with weights of its own, run one after the other in one session.

In a model weights come from memory, since those of other steps were used meanwhile, and activations from caches, where the step
before has left them. A chain has both: no weights are used twice in a run, and activations lie in one place. Values do not
matter: all weights are parts of one file of small random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx

from edgeplan.chapters.partition.layers import ANCHORS, LayerShape, layouts, lowered
from edgeplan.chapters.partition.learning.features import Floats
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.errors import DeviceError
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.partitioned.program import Assignment, Split, partition
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.processor import Host

_POOL, _POSITIVE, _CARRIER = "pool.bin", "positive.bin", "carrier.onnx"
_POOL_ELEMENTS, _POSITIVE_ELEMENTS = 48 << 20, 1 << 16
_SPREAD = 0.05
_FLOAT_BYTES = 4
_ALIGNMENT = 4096
_WARM_RUNS = 1
_FENCE_LAYER = LayerShape.linear(1, 64, 16)
_US = 1e3


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """A layer at a place in a chain, and the channels of it of lane 0: 0 for lane 1 alone, all for lane 0 alone."""

    layer: LayerShape
    channels: int

    @property
    def assignment(self) -> Assignment:
        """Tell where the layer runs."""
        if self.channels == 0:
            return 1
        return 0 if self.channels >= self.layer.outputs else Split(self.channels)


_FENCE = ChainPlace(_FENCE_LAYER, _FENCE_LAYER.outputs)


@dataclass(frozen=True, slots=True)
class ChainTimes:
    """Times of a chain are those of its steps.

    Attributes:
        us: of each step in each run (runs, steps): of a whole one its own time, of a split one from the start of both parts
            until the CPU knows that the GPU is done.
        implementations: of each step on the CPU and on the GPU, "" where it has no part.
    """

    us: Floats
    implementations: tuple[tuple[str, str], ...]

    @property
    def typical_us(self) -> Floats:
        """Return of each step the lower quartile of its runs, since what disturbs a run makes it longer only (steps,)."""
        return np.asarray(np.quantile(self.us, 0.25, axis=0), np.float64)


def write_pool(folder: Path) -> None:
    """The file that all weights are parts of, and one for variances, which are positive."""
    path = folder / _POOL
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        with path.open("wb") as file:
            (folder / _POSITIVE).write_bytes((rng.random(_POSITIVE_ELEMENTS, dtype=np.float32) + np.float32(0.5)).tobytes())
            for _ in range(16):
                values = rng.random(_POOL_ELEMENTS // 16, dtype=np.float32)
                file.write(((values - np.float32(0.5)) * np.float32(2 * _SPREAD)).tobytes())


def write_carrier(steps: Lowered, folder: Path, start: int = 0) -> Path:
    """A model file that holds nothing but where in the pool the weights of steps lie, one after the other."""
    graph = onnx.GraphProto(name=steps.name)
    size, at = _FLOAT_BYTES * _POOL_ELEMENTS, start
    for step in steps.steps:
        for role, name in step.weights.items():
            shape = steps.shapes[name]
            length = _FLOAT_BYTES * int(np.prod(shape))
            at = at if at + length <= size else 0
            file, offset = (_POSITIVE, 0) if role == "bn_variance" else (_POOL, at)
            tensor = onnx.TensorProto(name=name, dims=shape, data_type=onnx.TensorProto.FLOAT)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", file), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            graph.initializer.append(tensor)
            at += -(-length // _ALIGNMENT) * _ALIGNMENT
    path = folder / _CARRIER
    path.write_bytes(onnx.ModelProto(graph=graph).SerializeToString())
    return path


def timed(
    pair: Opened,
    places: Sequence[ChainPlace],
    folder: Path,
    runs: int,
    *,
    cpu: Host | None = None,
    synchronisation: Synchronisation | None = None,
    start: int = 0,
) -> ChainTimes:
    """Run a chain; the processors note times (`opened` with `profiling` where a step runs on the GPU alone)."""
    fenced = [*places, _FENCE]  # behind the splits, so that the CPU sees the end of each
    order = sorted(range(len(fenced)), key=lambda k: (_rank(fenced[k]), k != len(places), k))
    chosen = [fenced[k] for k in order]
    steps = lowered("chain", [place.layer for place in chosen])
    found = _times(pair, steps, layouts([p.layer for p in chosen]), [p.assignment for p in chosen], order, folder, runs,
                   cpu or pair.host, synchronisation or pair.synchronisation, start)  # fmt: skip
    return ChainTimes(found.us[:, :-1], found.implementations[:-1])


def _rank(place: ChainPlace) -> int:
    """Splits come first, then the CPU's layers, then the GPU's."""
    return 0 if isinstance(place.assignment, Split) else 1 + place.assignment


def timed_steps(pair: Opened, steps: Lowered, where: Mapping[str, str], lane: int, folder: Path, runs: int) -> ChainTimes:
    """Run any steps, none of which reads what another wrote, on one processor alone."""
    assignments = [lane] * len(steps.steps)
    order = list(range(len(steps.steps)))
    return _times(pair, steps, where, assignments, order, folder, runs, pair.host, pair.synchronisation, 0)


@contextmanager
def anchor_session(pair: Opened, lane: int, folder: Path) -> Iterator[PairSession]:
    """A session of `sampling.ANCHORS` on one processor."""
    steps = lowered("anchors", ANCHORS)
    parts = partition(steps, layouts(ANCHORS), pair.block, [lane] * len(ANCHORS))
    with PairSession.of(*pair.processors, parts, write_carrier(steps, folder), pair.synchronisation) as session:
        _fill(session)
        yield session


def _fill(session: PairSession) -> None:
    """Values in place of what nobody writes."""
    arena = session.arena.tensor(0, (session.placed.arena_bytes // _FLOAT_BYTES,), "float32")
    arena[:] = np.random.default_rng(0).random(len(arena), dtype=np.float32)


def _times(
    pair: Opened,
    steps: Lowered,
    where: Mapping[str, str],
    assignments: Sequence[Assignment],
    order: Sequence[int],
    folder: Path,
    runs: int,
    cpu: Host,
    synchronisation: Synchronisation,
    start: int,
) -> ChainTimes:
    parts = partition(steps, MappingProxyType(dict(where)), cpu.dnnl.info.block, assignments)
    carrier = write_carrier(steps, folder, start)
    found = np.zeros((runs, len(assignments)))
    with PairSession.of(cpu, pair.other, parts, carrier, synchronisation) as session:
        _fill(session)
        lanes, origin = np.array(parts.lanes), np.array(parts.ranged.origin)
        names = [("", "")] * len(assignments)
        for k, kernel in enumerate(session.kernels):
            one = list(names[order[origin[k]]])
            one[lanes[k]] = kernel.implementation
            names[order[origin[k]]] = (one[0], one[1])
        alone = np.isin(origin, origin[lanes == 0], invert=True)
        for run in range(-_WARM_RUNS, runs):
            session.execute()
            if (session.times[alone] < 0).any():
                raise DeviceError(
                    f"{pair.names[1]} does not tell when its kernels ran",
                    where="a chain of layers",
                    next_step="plan for such a pair from times of your own: edgeplan plan partition --costs costs.json",
                )
            if run >= 0:
                found[run, order] = _spans(session.times, lanes, origin, len(assignments)) / _US
    return ChainTimes(found, tuple(names))


def _spans(times: npt.NDArray[np.int64], lanes: npt.NDArray[np.int64], origin: npt.NDArray[np.int64], count: int) -> Floats:
    """Time of each step of one run, in ns."""
    begin, end = np.full((2, count), -1, np.int64), np.full((2, count), -1, np.int64)
    begin[lanes, origin], end[lanes, origin] = times.T
    on = [np.isin(np.arange(count), origin[lanes == lane]) for lane in (0, 1)]
    own = np.where(on[0], end[0] - begin[0], end[1] - begin[1]).astype(np.float64)
    return np.asarray(np.where(on[0] & on[1], np.append(begin[0, 1:], -1) - begin[0], own), np.float64)
