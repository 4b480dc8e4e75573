"""Describes nodes as an engine executes them: all that decides their time, and nothing that names them.

A description is enough to build the node again, with weights drawn anew, and to measure it (docs/prediction.md).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import msgspec
import numpy as np

from edgeplan.errors import FormatError

#: Value of an attribute; other kinds (tensors, graphs) are told by `NodeConfig.body`.
AttributeValue = int | float | str | tuple[int | float | str, ...]
#: Constants of at most so many integers steer a node, and are described by value.
MOST_VALUES = 16
#: Operators so called read of a table what they take.
LOOKUP = "Gather"


class Operand(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node reads or writes: its type by numpy's name, and whether it is a weight; values of small integer ones, flat."""

    dtype: str
    shape: tuple[int, ...]
    constant: bool = False
    values: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return bytes of the elements; those of text count as a pointer each."""
        return self.elements * (8 if self.dtype == "str" else np.dtype(self.dtype).itemsize)


class NodeConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """A configuration describes an executed node by all that decides its time.

    Attributes:
        op, domain: the engine's type of the node; the standard domain is "".
        attributes: name and value, sorted by name.
        inputs, outputs: operands, None for those left out.
        body: what attributes hold beside plain values (tensors, graphs), as the text of a NodeProto in base64; "" without.
    """

    op: str
    domain: str = ""
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    inputs: tuple[Operand | None, ...] = ()
    outputs: tuple[Operand | None, ...] = ()
    body: str = ""

    def attribute(self, name: str, default: AttributeValue) -> AttributeValue:
        """Return the value of an attribute, or what it is where it is not given."""
        return dict(self.attributes).get(name, default)

    @property
    def weight_bytes(self) -> int:
        """Return bytes of the weights that it reads."""
        return sum(one.bytes for one in self.inputs if one and one.constant)

    @property
    def activation_bytes(self) -> int:
        """Return bytes of what it reads and writes beside weights."""
        read = sum(one.bytes for one in self.inputs if one and not one.constant)
        return read + sum(one.bytes for one in self.outputs if one)

    def to_json(self) -> str:
        """Return the configuration as one line of JSON; equal configurations give equal lines."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> NodeConfig:
        """Read a configuration from its JSON; FormatError if the text is none."""
        try:
            return msgspec.json.decode(text, type=NodeConfig)
        except msgspec.MsgspecError as error:
            raise FormatError(f"not a configuration of a node: {error}", where=text[:80], next_step="dvc repro zoo") from error

    @property
    def key(self) -> str:
        """Return a digest of the configuration."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:20]


@dataclass(frozen=True)
class ExecutedNode:
    """An executed node is one of a model, as an engine runs it.

    Attributes:
        name, config: the engine's name of it, and what decides its time.
        operators: names of the file's operators that it holds; none of a layout conversion.
        times: how often it runs in an inference: more than once in the body of a loop.
    """

    name: str
    config: NodeConfig
    operators: tuple[str, ...] = ()
    times: int = 1


@dataclass(frozen=True)
class ExecutedModel:
    """What an engine runs of a model, in the order in which nodes run first.

    Attributes:
        name, nodes, told_by: of the model, its nodes, and the engine and version that told these.
        context_bytes: what passes through the caches between two runs of a node (`of`).
    """

    name: str
    nodes: tuple[ExecutedNode, ...]
    context_bytes: int
    told_by: str = ""

    @staticmethod
    def of(name: str, nodes: tuple[ExecutedNode, ...], weight_bytes: int, told_by: str) -> ExecutedModel:
        """Describe a model by its nodes and bytes of all its weights.

        Its context is weights that are read whole, and as many of activations at most: buffers of these are used again.
        """
        configs = [(node.config, node.times) for node in nodes]
        weights = min(weight_bytes, sum(one.weight_bytes for one, _ in configs if not one.op.startswith(LOOKUP)))
        activations = sum(one.activation_bytes * times for one, times in configs)
        return ExecutedModel(name, nodes, weights + min(weights, activations), told_by)
