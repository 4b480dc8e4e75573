"""Defines the subjects of measurements, the records that they give, and what a measurer is.

The bench plans batches, stores rows and judges noise on the host; a measurer, of this machine or of a board, knows neither
stores nor stages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from edgeplan.engines.base import EngineNode, apart, copies_of
from edgeplan.graph.ir import Graph
from edgeplan.graph.nodes import NodeConfig, Operand
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.graph.onnx.write import weight_bytes
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents

Floats = npt.NDArray[np.float64]
#: Columns of a row that have a value a block.
COLUMNS = ("least_us", "median_us", "compute_us", "bandwidth_us", "measured_at")


def graph_digest(graph: Graph) -> str:
    """Return the digest of what a graph computes; its name does not matter."""
    document = [
        [list(graph.inputs), list(graph.outputs)],
        [[op.name, op.op_type, op.inputs, op.outputs, op.weights, sorted(op.attributes.items())] for op in graph.operators],
        sorted((t.name, t.shape, t.dtype) for t in graph.tensors.values()),
    ]
    return hashlib.sha256(json.dumps(document, separators=(",", ":")).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Subject:
    """A subject is a graph to time.

    Weights are seeded alike for every subject, but those of an ONNX `file`, which no row store holds; without, one is written.
    Where it is `profiled`, the time of each engine node is wanted too.
    """

    graph: Graph
    profiled: bool = False
    file: Path | None = None

    @cached_property
    def id(self) -> str:
        """Return the digest of the graph and of what is measured of it."""
        return graph_digest(self.graph) + ("-nodes" if self.profiled else "")

    @cached_property
    def weight_bytes(self) -> int:
        """Return bytes of weights once loaded (twice when profiled: a plain and a counting session)."""
        return weight_bytes(self.graph) * (2 if self.profiled else 1)


@dataclass(frozen=True)
class NodeSubject:
    """A subject of a node is a model of its copies; what it takes in a call of its own is told by `CALLS`.

    Attributes:
        config: the executed node.
        context_bytes: of the model that it is of (`ExecutedModel`), which decides how many copies there are.
        copies: how many, where it is not for the context to say.
    """

    config: NodeConfig
    context_bytes: InitVar[int] = 0
    copies: int = 0
    profiled: ClassVar[bool] = False

    def __post_init__(self, context_bytes: int) -> None:
        object.__setattr__(self, "copies", self.copies or copies_of(self.config, context_bytes))

    @cached_property
    def id(self) -> str:
        """Return the digest of the node and of the number of its copies."""
        return hashlib.sha256(f"{self.copies} {self.config.to_json()}".encode()).hexdigest()[:20]

    @cached_property
    def weight_bytes(self) -> int:
        """Return bytes of the copies' weights once loaded, and of activations where each has its own."""
        return self.copies * (self.config.weight_bytes + apart(self.config) * self.config.activation_bytes)


@dataclass(frozen=True)
class FileSubject:
    """A subject is an ONNX file as a user has it: nothing of it is prepared.

    Attributes:
        name: tells files with other contents apart; it is what rows are kept by.
        write: writes the file at a path, or hands out that of one that is there.
        wanted: what it leaves open.
    """

    name: str
    write: Callable[[Path], Path]
    wanted: Preparation = field(default_factory=Preparation)
    weight_bytes: int = 0
    profiled: ClassVar[bool] = False

    @cached_property
    def id(self) -> str:
        """Return the digest of the name."""
        return hashlib.sha256(f"file {self.name}".encode()).hexdigest()[:20]


AnySubject = Subject | NodeSubject | FileSubject
_ONE = (Operand("float32", (1,)),)
#: A call of one node that does next to nothing, and of many: see `call_us`.
CALLS = tuple(NodeSubject(NodeConfig("Relu", inputs=_ONE, outputs=_ONE), copies=copies) for copies in (1, 64))


@dataclass(frozen=True)
class Measurement:
    """A measurement holds raw block times of a subject, with the references timed beside each block. Times are in microseconds.

    Attributes:
        subject: id of the subject.
        sample: 0 for the first measurement of a subject, k for the k-th repetition measured afresh.
        least_us, median_us: least and median run of each block (blocks,).
        compute_us, bandwidth_us: least times of the references around each block (blocks,).
        measured_at: seconds since the epoch at the start of each block (blocks,).
        nodes: executed nodes; empty unless profiled.
        node_us: time of a typical run of each node in each block (blocks, nodes).
        nominal: times of the references on this machine when it is quiet.
        exponents: how strongly times follow the references.
        seconds: wall clock the measurement took: its share of its batch, with model building, references and rejections.
    """

    subject: str
    sample: int
    least_us: Floats
    median_us: Floats
    compute_us: Floats
    bandwidth_us: Floats
    measured_at: Floats
    nodes: tuple[EngineNode, ...]
    node_us: Floats
    nominal: ReferenceTimes
    exponents: ReferenceExponents
    seconds: float = 0.0

    @cached_property
    def factors(self) -> Floats:
        """Return the factors that divide the machine's drift out of the times of each block (blocks,)."""
        compute, bandwidth = self.nominal.compute_us / self.compute_us, self.nominal.bandwidth_us / self.bandwidth_us
        return np.asarray(self.exponents.scaled(compute, bandwidth))

    @cached_property
    def block_us(self) -> Floats:
        """Return the normalised times of the blocks, those of their median runs, us (blocks,)."""
        return np.asarray(self.median_us * self.factors)

    @property
    def slowness(self) -> float:
        """Return how many times as slow as when it is quiet the machine was, by its references: median over blocks."""
        return float(np.median(1 / self.factors))

    @property
    def latency_us(self) -> float:
        """Return the median over blocks of the normalised time of a block."""
        return float(np.median(self.block_us))

    @property
    def noise(self) -> float:
        """Return half the range of the middle blocks over the latency: the spread one block's value is known to."""
        ordered = np.sort(self.block_us)
        trim = max(0, (len(ordered) - 3) // 2)
        kept = ordered[trim : len(ordered) - trim]
        return float((kept[-1] - kept[0]) / 2 / self.latency_us)

    @cached_property
    def node_latency_us(self) -> Floats:
        """Return the median over blocks of the normalised node times (nodes,)."""
        return np.asarray(np.median(self.node_us * self.factors[:, None], axis=0))


def call_us(measured: Sequence[Measurement]) -> float:
    """Return the time of a call without any node, by measurements of `CALLS`."""
    one, many = (m.latency_us for m in measured)
    return one - (many - one) / (CALLS[1].copies - CALLS[0].copies)


#: Members of each node that an engine executes, in order: names of operators of the graph.
NodeMembers = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about a machine: its engine's version and its fingerprint, which decide rows, and its state, kept beside them."""

    engine_version: str
    fingerprint: str
    environment: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Subjects that are loaded and timed together, in interleaved blocks, and the id of each in the store (`names`).

    The key is that of the rows that the batch gives: all that decides them but the subjects; for the others see `Measurement`.
    """

    key: str
    subjects: tuple[AnySubject, ...]
    names: tuple[str, ...]
    sample: int
    settings: MeasurementSettings
    nominal: ReferenceTimes


@dataclass(frozen=True, slots=True)
class MeasuringConditions:
    """Records the conditions that a batch was measured in: the cores, and the load at its end."""

    affinity: tuple[int, ...]
    load_1min: float


class Measurer(Protocol):
    """Times batches on one machine.

    `describe` comes first. `held` is entered before the first of some batches. After each batch `conditions` tells of it.
    """

    def describe(self) -> MachineFacts:
        """Return the facts about the measured machine that decide its rows."""

    def held(self) -> AbstractContextManager[None]:
        """Hold the machine while batches are measured."""

    def nominal(self, reference_runs: int, seconds: float | None = None) -> ReferenceTimes:
        """Time the references until their least times are known, for these seconds, or as long as is usual."""

    def measure(self, batch: Batch) -> list[Measurement]:
        """Measure a batch: one measurement for each subject, in order, under its name in the store; none of nodes refused."""

    def conditions(self) -> MeasuringConditions:
        """Return the conditions that the last batch was measured in."""

    def kept(self, batch: Batch) -> list[Measurement]:
        """Hand over what the machine measured of a batch's subjects earlier and could not hand over then."""

    def executed(self, graphs: Sequence[Graph]) -> Iterable[NodeMembers]:
        """Load each graph and tell the nodes that the engine would execute; nothing is timed."""

    def close(self) -> None:
        """Let go of the machine."""
