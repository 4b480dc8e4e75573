"""The interface of inference engines: each is a folder with a subclass of `Engine`, and a line of `registry.py`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.graph.index_limits import index_limits
from edgeplan.graph.ir import Graph, Tensor
from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.graph.shapes import FLOAT32
from edgeplan.runtime.plan_session import Closing
from edgeplan.support.lazy import lazily
from edgeplan.support.scratch import ScratchFolder

if TYPE_CHECKING:
    from edgeplan.graph import kernel_nodes
    from edgeplan.graph.onnx import write
    from edgeplan.graph.onnx.prepare import Preparation
else:  # who runs plans writes no models
    kernel_nodes, write = lazily("edgeplan.graph.kernel_nodes"), lazily("edgeplan.graph.onnx.write")

Array = npt.NDArray[Any]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine hold its threads, cores, and own options; values are f32 always."""

    threads: int = 1
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class EngineNode:
    """An engine node is executed by an engine as a whole, under the engine's own name and type.

    The implementation is the kernel it dispatched, members are names of the operators of the original graph that run in it. A
    layout conversion has no members, but the original activation it converts. What the engine does not tell is "".
    """

    name: str
    op_type: str
    implementation: str
    members: tuple[str, ...]
    tensor: str = ""
    input_layout: str = ""
    output_layout: str = ""

    @property
    def is_reorder(self) -> bool:
        """Tell whether the node only converts a layout."""
        return not self.members


class Session(Closing, ABC):
    """A session holds a loaded model with its inputs bound."""

    @abstractmethod
    def run(self) -> None:
        """Run one inference on the inputs given."""

    @abstractmethod
    def outputs(self) -> Mapping[str, Array]:
        """Return the outputs of the last run, by tensor name."""

    def close(self) -> None:
        """Free the model and its memory."""


class ProfiledSession(Session):
    """A profiled session belongs to an engine that counts the time of each node."""

    @abstractmethod
    def profile(self, blocks: Sequence[tuple[int, int]]) -> tuple[tuple[EngineNode, ...], Times]:
        """End profiling and report the executed nodes in order, and times in microseconds (blocks, nodes).

        Blocks are half-open ranges of runs, counted from 0, each of which is summarised by the time of a typical run.
        """


class Engine(ABC):
    """An engine runs models; its library is loaded on demand."""

    name: ClassVar[str]
    #: Whether `load_profiled` works.
    reports_nodes: ClassVar[bool] = False
    #: Whether `executed_file` works: what is executed is asked of files as users have them.
    reads_files: ClassVar[bool] = False
    #: Whether copies of a node run among operators and conversions, which counters tell apart from them.
    counts_copies: ClassVar[bool] = False

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Return the version of the installed engine; DeviceError where it is not installed."""

    @classmethod
    def version_for(cls, settings: EngineSettings) -> str:  # noqa: ARG003  for engines of several drivers
        """Return the version of what runs with these settings: rows are keyed by it.

        DeviceError where the engine is not installed, or what its options name is not there.
        """
        return cls.version()

    @abstractmethod
    def load(self, model: Path, graph: Graph) -> Session:
        """Load an ONNX file of `graph` and bind random inputs."""

    def load_profiled(self, model: Path, graph: Graph) -> ProfiledSession:
        """Load a model with per-node counters; NotImplementedError where the engine is a black box (no `reports_nodes`)."""
        raise NotImplementedError(f"{self.name} does not report its nodes")

    def load_file(self, path: Path, wanted: Preparation) -> Session:
        """Load a file as a user has it, nothing of which is prepared, and bind inputs of the sizes that are wanted.

        Raises:
            NotImplementedError: the engine is not asked of files (`reads_files` is false).
            ModelError: the file cannot be read, an axis stays open, or the engine cannot run it.
        """
        raise NotImplementedError(f"{self.name} loads graphs, not {path} ({wanted})")

    def load_copies(self, config: NodeConfig, copies: int) -> Session:
        """Load copies of an executed node, side by side in one model.

        Raises:
            ModelError: the engine does not run them, or they write what their description does not tell.
            FormatError: the node is none of this engine's.
        """
        with self._copies(config, copies) as (model, graph):
            return self.load(model, graph)

    def load_copies_profiled(self, config: NodeConfig, copies: int) -> ProfiledSession:
        """Load copies with per-node counters: conversions around them, which `load_copies` runs as well, show."""
        with self._copies(config, copies) as (model, graph):
            return self.load_profiled(model, graph)

    def copies_graph(self, config: NodeConfig, copies: int) -> Graph:
        """Return the graph that `load_copies` loads."""
        return kernel_nodes.copies_graph(config, copies, apart=apart(config), around=self.counts_copies)

    @contextmanager
    def _copies(self, config: NodeConfig, copies: int) -> Iterator[tuple[Path, Graph]]:
        graph = self.copies_graph(config, copies)
        with ScratchFolder("copies") as folder:
            path = write.save_onnx(graph, Path(folder) / "model.onnx")
            try:
                yield path, graph
            except EdgeplanError:
                raise
            except Exception as error:  # libraries raise what they like
                why = str(error).strip().rpartition("\n")[2]
                what = f"{self.name} does not run copies of a node {config.op}: {why}"
                raise ModelError(what, where=f"configuration {config.key}", next_step="leave it out") from error

    def told(self, graph: Graph) -> tuple[EngineNode, ...]:
        """Return the nodes that the engine would run for a graph; no inference is run."""
        with (
            ScratchFolder("executed") as folder,
            self.load_profiled(write.save_onnx(graph, Path(folder) / "model.onnx"), graph) as session,
        ):
            return session.profile([])[0]

    def executed_file(self, path: Path, wanted: Preparation, *, fused: bool = True) -> ExecutedModel:
        """Return the nodes that the engine runs of a file (see `load_file`); nothing is timed.

        Operators are `fused` as usual; without, each is a node.
        """
        raise NotImplementedError(f"{self.name} is asked of graphs, not of {path} ({wanted}, {fused})")

    def reference_loads(self) -> tuple[Callable[[], None], Callable[[], None]] | None:
        """Return what follows the clock and the memory of a processor other than the host's; None: the host's own loads do."""
        return None


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Draw seeded inputs in [0.05, 1): no zeros, no denormals.

    Integers and truth values are 0 and 1; indices of one place are 0.
    """
    rng, limits = np.random.default_rng(seed), index_limits(graph)

    def values(tensor: Tensor) -> Array:
        if tensor.dtype != FLOAT32:
            return np.asarray(rng.integers(0, min(limits.get(tensor.name, 2), 2), tensor.shape), tensor.dtype)
        return np.asarray(rng.random(tensor.shape, dtype=np.float32) * np.float32(0.95) + np.float32(0.05))

    return {name: values(graph.tensors[name]) for name in graph.inputs}


# In how many copies a node is measured: side by side in one model, as it finds its weights in the model that it is of

#: Weights of all copies; more lies beyond every cache anyway.
MOST_WEIGHT_BYTES = 80 << 20
#: A node that moves more than this finds its activations in no cache of its core: each copy has its own.
APART_BYTES = 256 << 10
#: Activations of all copies where they lie apart, and from where on two copies are enough.
_MOST_APART_BYTES, _LARGE_BYTES = 24_000_000, 12_000_000
#: A node is small below so many bytes; so many copies make its time a matter of tens of nanoseconds.
_SMALL_BYTES, _LEAST_COPIES = 200_000, 24
#: Most copies of nodes with weights below and from 64 KiB, and of those whose activations lie apart and outweigh their weights.
_MOST_COPIES, _MOST_HEAVY_COPIES, _HEAVY_BYTES, _MOST_APART_COPIES = 48, 512, 64 << 10, 8
#: Multiplications of a run, about: what computes for long needs no copies to be seen, and waits for no weights.
_MOST_WORK = 1_000_000_000


def apart(config: NodeConfig) -> bool:
    """Tell whether each copy has activations of its own."""
    return config.activation_bytes > APART_BYTES


def copies_of(config: NodeConfig, context_bytes: int) -> int:
    """Return the number of copies that pass as much through the caches as the model around (`context_bytes`) does, or more."""
    weights, activations = config.weight_bytes, config.activation_bytes
    most = _MOST_HEAVY_COPIES if weights >= _HEAVY_BYTES else _MOST_COPIES
    copies = min(most, math.ceil(min(context_bytes, MOST_WEIGHT_BYTES) / max(1.0, weights + activations / 4)))
    if weights + activations < _SMALL_BYTES:
        copies = max(copies, _LEAST_COPIES)
    copies, least = min(copies, MOST_WEIGHT_BYTES // max(1, weights)), 1
    if apart(config):
        least = 2 if 2 * weights <= MOST_WEIGHT_BYTES else 1
        if activations >= _LARGE_BYTES:
            copies = least
        elif weights <= activations:
            copies = min(copies, _MOST_APART_COPIES, _MOST_APART_BYTES // (activations + weights))
    return max(least, min(copies, int(_MOST_WORK / _multiplications(config))))


def _multiplications(config: NodeConfig) -> float:
    """Estimate the multiplications of a product by its three operands; at least 1, and too many for a sparse one."""
    weights = max((one.elements for one in config.inputs if one and one.constant), default=0)
    read, written = (max((one.elements for one in part if one), default=0) for part in (config.inputs[:1], config.outputs))
    return max(1.0, math.sqrt(float(weights) * read * written))
